#include "reynard/models/mixers/top_k_attention.h"

#include "reynard/knn/search.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isneginf.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace reynard::models {

namespace {

// Queries whose chosen keys and values are gathered at once: (B, 128, H, k, D) twice.
constexpr int64_t kQueryBlock = 128;

// ids (B, T, H, k) of t (B, M, G, D) -> (B, T, H, k, D); query head h reads head h G / H.
at::Tensor chosen(const at::Tensor& t, const at::Tensor& ids) {
  const int64_t B = t.size(0), G = t.size(2), H = ids.size(2);
  const at::Tensor row = at::arange(B, ids.options()).view({B, 1, 1, 1});
  const at::Tensor head = at::floor_divide(at::arange(H, ids.options()) * G, H).view({1, 1, H, 1});
  return t.index({row, ids, head});
}

// Queries as a search takes them: finite. What it finds for others does not matter.
at::Tensor asked(const at::Tensor& q) {
  const at::Tensor queries = q.detach();
  return at::where(at::isfinite(queries), queries, 0);
}

// What each query and head looked up.
struct ChosenKeys {
  at::Tensor k, v;     // (B, T, H, k, D)
  at::Tensor visible;  // (B, T, H, k) bool
  at::Tensor sums;     // (B, T, H, k) f64, or undefined
};

attention::AttentionOutput attend_chosen(const at::Tensor& q,
                                         const at::Tensor& query_sums,
                                         const ChosenKeys& chosen) {
  // An infinite query whose logits are all -inf would else be one that sees nothing.
  const at::Tensor queries =
      at::where(at::isfinite(q), q, std::numeric_limits<double>::quiet_NaN()).to(at::kFloat);
  const at::Tensor keys = chosen.k.to(at::kFloat);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor logits = at::matmul(keys, queries.unsqueeze(-1)).squeeze(-1) * scale;  // (B, T, H, k)
  if (chosen.sums.defined()) {
    logits = logits + (query_sums.transpose(1, 2).unsqueeze(-1) - chosen.sums).to(at::kFloat);
  }
  logits =
      logits.masked_fill(chosen.visible.logical_not(), -std::numeric_limits<double>::infinity());
  const at::Tensor lse = at::logsumexp(logits, {-1});
  const at::Tensor finite = at::where(at::isfinite(lse), lse, at::zeros_like(lse));
  const at::Tensor weights = at::exp(logits - finite.unsqueeze(-1));
  const at::Tensor values = chosen.v.to(at::kFloat);
  return {.out = at::matmul(weights.unsqueeze(-2), values).squeeze(-2).to(q.scalar_type()),
          .lse = lse.transpose(1, 2),
          .start = {}};
}

// Sums (B, H, M) of ids (B, T, H, k) -> (B, T, H, k).
at::Tensor chosen_sums(const at::Tensor& sums, const at::Tensor& ids) {
  if (!sums.defined()) return {};
  const at::Tensor by_head = ids.transpose(1, 2);
  return sums.gather(2, by_head.flatten(2)).view_as(by_head).transpose(1, 2);
}

// Attends to what `choose` finds for q.narrow(1, begin, size), block by block.
template <class Choose>
attention::AttentionOutput attend_in_blocks(const at::Tensor& q,
                                            const at::Tensor& query_sums,
                                            const Choose& choose) {
  std::vector<at::Tensor> outs, lses;
  for (int64_t begin = 0; begin < q.size(1); begin += kQueryBlock) {
    const int64_t size = std::min(kQueryBlock, q.size(1) - begin);
    const at::Tensor queries = q.narrow(1, begin, size);
    const at::Tensor sums = query_sums.defined() ? query_sums.narrow(2, begin, size) : query_sums;
    const auto block = attend_chosen(queries, sums, choose(queries, begin));
    outs.push_back(block.out);
    lses.push_back(block.lse);
  }
  return {.out = at::cat(outs, 1), .lse = at::cat(lses, 2), .start = {}};
}

attention::AttentionOutput nothing_seen(const at::Tensor& q) {
  return {.out = at::zeros_like(q.detach()),
          .lse = at::full({q.size(0), q.size(2), q.size(1)},
                          -std::numeric_limits<double>::infinity(),
                          q.options().dtype(at::kFloat)),
          .start = {}};
}

// One ring per row of the batch, all of the part's keys in it.
std::vector<knn::KeyRing> rings_of(const attention::KeyPart& part) {
  std::vector<knn::KeyRing> rings;
  for (int64_t b = 0; b < part.k.size(0); ++b) {
    knn::KeyRing& ring = rings.emplace_back();
    ring.keys = part.k[b].detach().transpose(0, 1);
    ring.next = part.k.size(1);
    // Entries that the row's first query does not see are padding: no query of it sees them.
    if (part.first_key.defined()) ring.first = part.first_key[b][0].item<int64_t>();
  }
  return rings;
}

}  // namespace

attention::AttentionOutput top_k_attention(const at::Tensor& q,
                                           const at::Tensor& query_sums,
                                           const attention::KeyPart& part,
                                           int64_t k) {
  const std::vector<knn::KeyRing> rings = rings_of(part);
  int64_t most = 0;
  for (const knn::KeyRing& ring : rings) most = std::max(most, ring.size());
  if (most == 0) return nothing_seen(q);
  return attend_in_blocks(q, query_sums, [&](const at::Tensor& queries, int64_t begin) {
    const at::Tensor found = knn::search(asked(queries), rings, std::min(k, most)).ids;
    const at::Tensor ids = found.clamp_min(0);
    at::Tensor visible = found.ge(0);
    if (part.first_key.defined()) {
      const at::Tensor first = part.first_key.narrow(1, begin, queries.size(1));
      visible = visible.logical_and(found.ge(first.unsqueeze(-1).unsqueeze(-1)));
    }
    return ChosenKeys{.k = chosen(part.k, ids),
                      .v = chosen(part.v, ids),
                      .visible = visible,
                      .sums = chosen_sums(part.sums, ids)};
  });
}

attention::AttentionOutput top_k_attention(const at::Tensor& q,
                                           const at::Tensor& query_sums,
                                           const LayerMemory& memory,
                                           int64_t k) {
  // The gates of a memory count only where the query's do.
  const at::Tensor key_sums =
      query_sums.defined() ? memory.sums().unsqueeze(0).to(q.device()) : at::Tensor();
  // Keys that have to cross the bus do so once, for all queries.
  at::Tensor all_ids;
  if (memory.copies_keys()) all_ids = memory.search(asked(q), k).ids;
  return attend_in_blocks(q, query_sums, [&](const at::Tensor& queries, int64_t begin) {
    const at::Tensor ids = all_ids.defined() ? all_ids.narrow(1, begin, queries.size(1))
                                             : memory.search(asked(queries), k).ids;
    const knn::Entries found = memory.gather(ids);
    return ChosenKeys{.k = found.keys,
                      .v = found.values,
                      .visible = ids.ge(0),
                      .sums = chosen_sums(key_sums, ids.clamp_min(0))};
  });
}

attention::AttentionOutput joined(const attention::AttentionOutput& a,
                                  const attention::AttentionOutput& b) {
  // Neither value nor gradient may become NaN where both see nothing.
  const at::Tensor nothing = at::isneginf(b.lse);
  const at::Tensor excess =
      (b.lse - a.lse).masked_fill(nothing, -std::numeric_limits<double>::infinity());
  const at::Tensor share = at::sigmoid(excess).transpose(1, 2).unsqueeze(-1);
  const at::Tensor own = a.out.to(at::kFloat);
  return {.out = (own + share * (b.out.to(at::kFloat) - own)).to(a.out.scalar_type()),
          .lse = at::where(nothing, a.lse, at::logaddexp(a.lse, b.lse.masked_fill(nothing, 0))),
          .start = {}};
}

}  // namespace reynard::models
