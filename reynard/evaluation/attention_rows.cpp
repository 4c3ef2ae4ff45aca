#include "reynard/evaluation/attention_rows.h"

#include "reynard/attention/bias.h"
#include "reynard/tensor/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace reynard::evaluation {

namespace {

constexpr int64_t kQueries = 64;  // rows that exist at once
constexpr float kHidden = -std::numeric_limits<float>::infinity();

// The keys of `remembered` (R, K) without the `top_k` of each row that have the largest products,
// of equal ones the first: those that a search leaves out (knn/search.h).
at::Tensor left_out(const at::Tensor& products, const at::Tensor& remembered, int64_t top_k) {
  const int64_t k = std::min(top_k, products.size(1));
  const at::Tensor scores = products.masked_fill(~remembered, kHidden);
  const at::Tensor least = std::get<0>(scores.topk(k, -1)).narrow(-1, k - 1, 1);
  const at::Tensor above = scores.gt(least), equal = scores.eq(least);
  const at::Tensor room = k - above.sum(-1, true);
  return remembered & ~(above | (equal & equal.cumsum(-1).le(room)));
}

// Makes logits (R, K) those of one softmax in which the keys of `remembered` have `share` of each
// row that sees any of them, and the others the rest.
void share_out(at::Tensor& logits, const at::Tensor& remembered, double share) {
  const auto normalised = [&](const at::Tensor& left_out, double mass) {
    return at::log_softmax(logits.masked_fill(left_out, kHidden), -1) + std::log(mass);
  };
  const at::Tensor has_memory = logits.masked_fill(~remembered, kHidden).isfinite().any(-1, true);
  const at::Tensor shared =
      at::where(remembered, normalised(~remembered, share), normalised(remembered, 1 - share));
  logits = at::where(has_memory, shared, logits);
}

}  // namespace

void check_view_is_finite(const models::AttentionView& view, int64_t layer, std::string_view task) {
  for (const at::Tensor& tensor : {view.q, view.k, view.memory_k, view.log_gate}) {
    if (!tensor.defined() || at::isfinite(tensor).all().item<bool>()) continue;
    throw Error(
        fmt::format("{}: queries, keys or gates of layer {} are not finite: weights of it or of "
                    "what comes before it hold NaN or numbers that are too large",
                    task,
                    layer + 1));
  }
}

at::Tensor gate_sums_of(const models::AttentionView& view) {
  if (!view.log_gate.defined()) return {};
  return attention::gate_sums(view.log_gate.unsqueeze(0)).squeeze(0);
}

void for_attention_rows(const models::AttentionView& view,
                        const at::Tensor& queries,
                        const std::function<void(const AttentionRows&)>& visit) {
  const int64_t H = view.q.size(1);
  const int64_t repeats = H / view.k.size(1);
  const double scale = 1 / std::sqrt(static_cast<double>(view.q.size(2)));
  const at::Tensor sums = gate_sums_of(view);
  for (int64_t first = 0; first < queries.size(0); first += kQueries) {
    const int64_t count = std::min(kQueries, queries.size(0) - first);
    AttentionRows rows;
    rows.first = first;
    rows.queries = queries.narrow(0, first, count);
    const int64_t K = rows.queries[count - 1].item<int64_t>() + 1;
    const at::Tensor keys = at::arange(K, at::kLong).unsqueeze(0);
    // (R, K): keys before the one that each query has in `limits` (N); undefined without them.
    const auto before = [&](const at::Tensor& limits) {
      return limits.defined() ? keys < limits.index_select(0, rows.queries).unsqueeze(1)
                              : at::Tensor();
    };
    const at::Tensor kept = before(view.first_decayed);  // gates do not act on them
    const at::Tensor remembered = before(view.first_local);
    at::Tensor hidden = keys > rows.queries.unsqueeze(1);
    if (view.first_key.defined()) hidden = hidden | before(view.first_key);
    for (rows.head = 0; rows.head < H; ++rows.head) {
      const at::Tensor q =
          view.q.select(1, rows.head).index_select(0, rows.queries).to(at::kFloat) * scale;
      const auto products = [&](const at::Tensor& k, at::ScalarType type) {  // (R, K)
        const at::Tensor own = k.select(1, rows.head / repeats).narrow(0, 0, K).to(type);
        return at::matmul(q.to(type), own.transpose(0, 1));
      };
      rows.logits = products(view.k, at::kFloat);
      if (view.memory_k.defined()) {
        rows.logits = at::where(remembered, products(view.memory_k, at::kFloat), rows.logits);
      }
      if (sums.defined()) {
        const at::Tensor c = sums[rows.head];
        // Subtracted in f64: sums of long texts are large, their differences are not.
        rows.log_decay =
            (c.index_select(0, rows.queries).unsqueeze(1) - c.narrow(0, 0, K)).to(at::kFloat);
        if (kept.defined()) rows.log_decay.masked_fill_(kept, 0);
        rows.log_decay.masked_fill_(hidden, kHidden);
        rows.logits += rows.log_decay;
      } else {
        rows.logits.masked_fill_(hidden, kHidden);
      }
      if (view.top_k > 0 && remembered.defined()) {
        const at::Tensor& k = view.memory_k.defined() ? view.memory_k : view.k;
        // Rounded from f64, so that equal keys have equal products wherever they lie.
        const at::Tensor scores = products(k, at::kDouble).to(at::kFloat);
        rows.logits.masked_fill_(left_out(scores, remembered & ~hidden, view.top_k), kHidden);
      }
      if (view.memory_share.defined()) {
        share_out(rows.logits, remembered, view.memory_share[rows.head].item<double>());
      }
      visit(rows);
    }
  }
}

}  // namespace reynard::evaluation
