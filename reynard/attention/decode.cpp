#include "reynard/attention/decode.h"

#include "reynard/attention/arguments.h"
#include "reynard/attention/part_kernels.h"
#include "reynard/attention/pruning_limits.h"
#include "reynard/attention/scale.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/to_device.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace reynard::attention {

namespace {

AttentionOptions with_scale(AttentionOptions options, int64_t D) {
  options.scale = effective_scale(options.scale, D);
  return options;
}

void check_paged(const at::Tensor& q,
                 std::span<const int64_t> offsets,
                 std::span<const LayerCache* const> caches,
                 const at::Tensor& logit_bound,
                 int64_t window,
                 const AttentionOptions& options) {
  constexpr std::string_view kOp = "paged_attention";
  using tensor::check_value;
  check_value(!caches.empty(), kOp, "number of caches", caches.size(), "at least one");
  if (offsets.size() != caches.size() + 1) {
    tensor::fail(kOp,
                 "length of offsets",
                 std::to_string(offsets.size()),
                 "one more than the " + std::to_string(caches.size()) + " caches");
  }
  const PagePool* pool = caches[0]->pool().get();
  const int64_t H = caches[0]->num_kv_heads() * pool->layout().group;
  tensor::check_shape(kOp, "q", q, {{"N"}, {"H", H}, {"D", pool->layout().head_dim}});
  tensor::check_dtype(kOp, "q", q, {pool->layout().dtype});
  tensor::check_device(kOp, "q", q, "the pages", pool->keys().device());
  if (offsets.front() != 0 || offsets.back() != q.size(0)) {
    tensor::fail(kOp,
                 "last offset",
                 std::to_string(offsets.back()),
                 "the number of queries, " + std::to_string(q.size(0)) + ", and the first one 0");
  }
  for (size_t s = 0; s < caches.size(); ++s) {
    check_value(
        caches[s]->pool().get() == pool && caches[s]->num_kv_heads() * pool->layout().group == H,
        kOp,
        "cache",
        s,
        "a cache of the same pool and number of heads as the first");
    const int64_t num_queries = offsets[s + 1] - offsets[s];
    if (num_queries < 0 || num_queries > caches[s]->length()) {
      tensor::fail(kOp,
                   "queries of sequence " + std::to_string(s),
                   std::to_string(num_queries),
                   "at most its cached length " + std::to_string(caches[s]->length()) +
                       " (append keys first)");
    }
    const int64_t first = caches[s]->length() - num_queries;
    if (num_queries > 0 && first < caches[s]->horizon() - 1) {
      tensor::fail(kOp,
                   "first query of sequence " + std::to_string(s),
                   std::to_string(first),
                   "at least " + std::to_string(caches[s]->horizon() - 1) +
                       ": keys were evicted that earlier queries see");
    }
  }
  if (logit_bound.defined()) {
    tensor::check_shape(kOp, "logit_bound", logit_bound, {{"H", H}});
    tensor::check_dtype(kOp, "logit_bound", logit_bound, {at::kFloat});
    tensor::check_device(kOp, "logit_bound", logit_bound, "q", q.device());
  }
  check_value(window >= 0, kOp, "window", window, "0 (off) or more");
  check_options(kOp, options);
}

// (H, N) of (N, H); of one token it is the same values.
at::Tensor heads_first(const at::Tensor& rows) {
  return rows.size(0) == 1 ? rows.view({rows.size(1), 1}) : rows.t().contiguous();
}

// All sequences with one query in one call of the kernel.
struct DecodeBatch {
  std::vector<const LayerCache*> caches;
  std::vector<int64_t> rows;  // of q, ascending

  bool is_all_of(const at::Tensor& q) const { return std::ssize(rows) == q.size(0); }
};

// (S, G, N) i32 on the CPU.
at::Tensor page_table(const DecodeBatch& batch) {
  const int64_t G = batch.caches[0]->num_kv_heads();
  size_t longest = 0;
  for (const LayerCache* cache : batch.caches) longest = std::max(longest, cache->pages(0).size());
  const auto N = static_cast<int64_t>(longest);
  at::Tensor table = at::empty({std::ssize(batch.caches), G, N}, at::kInt);
  auto* row = table.mutable_data_ptr<int32_t>();
  for (const LayerCache* cache : batch.caches) {
    for (int64_t g = 0; g < G; ++g, row += N) {
      const std::vector<int32_t>& pages = cache->pages(g);
      std::fill(std::copy(pages.begin(), pages.end(), row), row + N, -1);
    }
  }
  return table;
}

std::vector<HostSequence> host_sequences(const DecodeBatch& batch, int64_t window) {
  std::vector<HostSequence> sequences;
  sequences.reserve(batch.caches.size());
  for (const LayerCache* cache : batch.caches) {
    HostSequence& sequence = sequences.emplace_back();
    sequence.pages.reserve(cache->num_kv_heads());
    sequence.num_evicted.reserve(cache->num_kv_heads());
    sequence.length = cache->length();
    sequence.first_key = window > 0 ? std::max<int64_t>(cache->length() - window, 0) : 0;
    sequence.evicted_masses = cache->evicted_masses().data();
    sequence.evicted_norms = cache->evicted_norms().data();
    for (int64_t g = 0; g < cache->num_kv_heads(); ++g) {
      sequence.pages.push_back(cache->pages(g).data());
      sequence.num_evicted.push_back(cache->begin(g) / kPageTokens);
    }
  }
  return sequences;
}

DecodeArguments decode_arguments(const DecodeBatch& batch,
                                 const at::Tensor& q,
                                 const at::Tensor& logit_bound,
                                 int64_t window,
                                 const AttentionOptions& options) {
  const PagePool& pool = *batch.caches[0]->pool();
  const auto S = static_cast<int64_t>(batch.caches.size());
  const int64_t G = batch.caches[0]->num_kv_heads(), group = pool.layout().group;
  DecodeArguments a;
  a.q = batch.is_all_of(q)
            ? q.contiguous()
            : q.index_select(0, tensor::to_device(at::tensor(batch.rows, at::kLong), q.device()))
                  .contiguous();
  a.keys = pool.keys(), a.values = pool.values(), a.scales = pool.scales();
  a.sums = pool.sums(), a.norms = pool.norms(), a.masses = pool.masses();
  a.logit_bound = logit_bound.defined() ? logit_bound.contiguous() : logit_bound;
  a.options = with_scale(options, q.size(2));
  if (q.is_cpu()) {
    a.sequences = host_sequences(batch, window);
    return a;
  }
  a.lengths = at::empty({S}, at::kLong);
  a.first_key = at::empty({S}, at::kInt);
  a.evicted_masses = at::empty({S, G * group}, at::kDouble);
  a.evicted_norms = at::empty({S, G}, at::kFloat);
  for (int64_t s = 0; s < S; ++s) {
    const LayerCache& cache = *batch.caches[s];
    a.lengths.mutable_data_ptr<int64_t>()[s] = cache.length();
    a.first_key.mutable_data_ptr<int32_t>()[s] =
        static_cast<int32_t>(window > 0 ? std::max<int64_t>(cache.length() - window, 0) : 0);
    for (int64_t g = 0; g < G; ++g) {
      a.evicted_norms.mutable_data_ptr<float>()[s * G + g] = cache.evicted_norms()[g];
    }
    for (int64_t h = 0; h < G * group; ++h) {
      a.evicted_masses.mutable_data_ptr<double>()[s * G * group + h] = cache.evicted_masses()[h];
    }
  }
  a.page_table = page_table(batch);
  at::Tensor* const tables[] = {
      &a.page_table, &a.lengths, &a.first_key, &a.evicted_masses, &a.evicted_norms};
  tensor::to_device_together(tables, q.device());
  return a;
}

// The kv heads first, ..., first + count - 1 of a cache.
struct HeadRun {
  int64_t first = 0, count = 1;
};

// Several queries of one sequence.
struct Chunk {
  const LayerCache& cache;
  at::Tensor q;            // (Tq, H, D)
  at::Tensor logit_bound;  // (H), or undefined
  int64_t window = 0;
  AttentionOptions options;  // with the scale in use
};

// What is left of the tolerance for the queries of some heads after eviction; 0 turns pruning off.
// A query's mass is at least that of its own key, one of own_keys (Tq, count, D). first_sums
// (count * group): sums of the first query.
double remaining_tolerance(const Chunk& chunk,
                           const HeadRun& run,
                           const at::Tensor& own_keys,
                           const at::Tensor& first_sums) {
  const LayerCache& cache = chunk.cache;
  const AttentionOptions& options = chunk.options;
  if (options.log_pruning_tolerance == 0 || cache.begin(run.first) == 0) {
    return options.log_pruning_tolerance;
  }
  const int64_t group = cache.pool()->layout().group, first_head = run.first * group;
  const auto longest_of = [](const at::Tensor& rows) {
    return rows.to(at::kDouble).square().sum(-1).amax(0).sqrt().cpu();
  };
  const at::Tensor q = chunk.q.slice(1, first_head, first_head + run.count * group);
  const at::Tensor queries = longest_of(q), keys = longest_of(own_keys);
  const at::Tensor sums = first_sums.cpu().contiguous(), bound = chunk.logit_bound;
  const at::Tensor given = bound.defined() ? bound.cpu().contiguous() : bound;
  double evicted = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < run.count * group; ++i) {
    const double factor = options.scale * queries.const_data_ptr<double>()[i];
    // Of the logits of evicted keys and of the own one together.
    const double bounds = given.defined() ? 2.0 * given.const_data_ptr<float>()[first_head + i]
                                          : factor * (cache.evicted_norms()[run.first + i / group] +
                                                      keys.const_data_ptr<double>()[i / group]);
    evicted = std::max(
        evicted,
        bounds + sums.const_data_ptr<double>()[i] + cache.evicted_masses()[first_head + i]);
  }
  const double left = std::exp(options.log_pruning_tolerance) - std::exp(evicted);
  return left > 0 ? std::log(left) : 0;
}

// Heads from `first` on whose kept keys begin alike, as long as their copies stay small. A GPU
// needs many heads at once to be busy.
HeadRun next_run(const LayerCache& cache, int64_t first) {
  const PageLayout& layout = cache.pool()->layout();
  const int64_t copied_bytes = int64_t{layout.device.is_cpu() ? 32 : 1024} << 20;
  // Rows of int8 are copied as they lie, widened, and rounded.
  const auto bytes_of = [](at::ScalarType dtype) {
    return static_cast<int64_t>(c10::elementSize(dtype));
  };
  const int64_t widened_bytes = layout.int8 ? bytes_of(at::kChar) + bytes_of(at::kFloat) : 0;
  const int64_t row_bytes = 2 * layout.head_dim * (bytes_of(layout.dtype) + widened_bytes);
  const int64_t head_bytes = (cache.length() - cache.begin(first)) * row_bytes;
  const int64_t most = std::max<int64_t>(1, copied_bytes / std::max<int64_t>(1, head_bytes));
  HeadRun run = {.first = first};
  while (run.count < most && first + run.count < cache.num_kv_heads() &&
         cache.begin(first + run.count) == cache.begin(first)) {
    ++run.count;
  }
  return run;
}

// A kv head may keep another part of the past than its neighbour, so heads that keep the same are
// one call of the full operator on their gathered pages. To `row` of the result.
void chunk_attention(const Chunk& chunk, PagedOutput& result, int64_t row) {
  const auto& [cache, q, logit_bound, window, options] = chunk;
  const int64_t Tq = q.size(0), group = cache.pool()->layout().group;
  const int64_t first_query = cache.length() - Tq;
  for (int64_t g = 0; g < cache.num_kv_heads();) {
    const HeadRun run = next_run(cache, g);
    g += run.count;
    const int64_t first_head = run.first * group, end_head = first_head + run.count * group;
    const LayerCache::Gathered kept = cache.gather(run.first, run.count);
    const at::Tensor heads = q.slice(1, first_head, end_head);
    KeyPart part;
    part.k = kept.k.unsqueeze(0);
    part.v = kept.v.unsqueeze(0);
    part.sums = kept.sums.unsqueeze(0);
    if (window > 0) {
      const at::Tensor position =
          at::arange(first_query, cache.length(), q.options().dtype(at::kInt));
      const int64_t seen = std::min(window, cache.length());
      part.first_key = (position - static_cast<int32_t>(seen - 1 + kept.begin)).clamp_min(0);
      part.first_key = part.first_key.to(at::kInt).unsqueeze(0);
    }
    const int64_t kept_keys = kept.k.size(0);
    const at::Tensor query_sums = part.sums.slice(2, kept_keys - Tq).contiguous();
    AttentionOptions head_options = options;
    head_options.log_pruning_tolerance = remaining_tolerance(
        chunk, run, kept.k.slice(0, kept_keys - Tq), query_sums.select(0, 0).select(1, 0));
    const at::Tensor bound = logit_bound.defined()
                                 ? logit_bound.slice(0, first_head, end_head).contiguous()
                                 : logit_bound;
    const AttentionOutput head =
        attention(heads.unsqueeze(0), query_sums, {&part, 1}, bound, head_options);
    result.out.slice(0, row, row + Tq).slice(1, first_head, end_head).copy_(head.out[0]);
    result.lse.slice(0, first_head, end_head).slice(1, row, row + Tq).copy_(head.lse[0]);
    const at::Tensor start =
        head.start[0].repeat_interleave(kQueryBlock, 1).slice(1, 0, Tq) + kept.begin;
    result.start.slice(0, first_head, end_head).slice(1, row, row + Tq).copy_(start);
  }
}

}  // namespace

PagedOutput paged_attention(const at::Tensor& q,
                            std::span<const int64_t> offsets,
                            std::span<const LayerCache* const> caches,
                            const at::Tensor& logit_bound,
                            int64_t window,
                            const AttentionOptions& options) {
  check_paged(q, offsets, caches, logit_bound, window, options);
  DecodeBatch batch;
  for (size_t s = 0; s < caches.size(); ++s) {
    if (offsets[s + 1] - offsets[s] != 1) continue;
    batch.caches.push_back(caches[s]);
    batch.rows.push_back(offsets[s]);
  }
  const auto decode = [&] {
    return part_kernels(q).decode(decode_arguments(batch, q, logit_bound, window, options));
  };
  if (q.size(0) > 0 && batch.is_all_of(q)) {
    const DecodeOutput all = decode();
    return {.out = all.out, .lse = heads_first(all.lse), .start = heads_first(all.start)};
  }
  PagedOutput result;
  result.out = at::empty(q.sizes(), q.options());
  result.lse = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kFloat));
  result.start = at::empty({q.size(1), q.size(0)}, q.options().dtype(at::kInt));
  for (size_t s = 0; s < caches.size(); ++s) {
    const int64_t num_queries = offsets[s + 1] - offsets[s];
    if (num_queries > 1) {
      const Chunk chunk = {.cache = *caches[s],
                           .q = q.slice(0, offsets[s], offsets[s + 1]),
                           .logit_bound = logit_bound,
                           .window = window,
                           .options = with_scale(options, q.size(2))};
      chunk_attention(chunk, result, offsets[s]);
    }
  }
  if (batch.caches.empty()) return result;
  const DecodeOutput rows = decode();
  const at::Tensor index = tensor::to_device(at::tensor(batch.rows, at::kLong), q.device());
  result.out.index_copy_(0, index, rows.out);
  result.lse.index_copy_(1, index, rows.lse.t());
  result.start.index_copy_(1, index, rows.start.t());
  return result;
}

}  // namespace reynard::attention
