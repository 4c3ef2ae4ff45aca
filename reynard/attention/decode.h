#pragma once
// Attention of new queries over paged caches: one query per sequence reads its pages in place and
// never touches pruned ones; several queries (a prefill chunk on a cache that already holds tokens)
// gather the pages first. Inference only: nothing is differentiable.

#include "reynard/attention/attention.h"
#include "reynard/attention/cache.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace reynard::attention {

struct PagedOutput {
  at::Tensor out;  // (N, H, D) dtype of q
  at::Tensor lse;  // (H, N) f32
  // (H, N) i32: first key read for each query, in positions of its sequence; where a sequence has
  // several queries, for the 128 of its block.
  at::Tensor start;
};

// Ragged: the queries of sequence s are rows offsets[s] .. offsets[s + 1] of q and stand at the
// last positions of caches[s], whose keys include their own (append first). All caches share one
// pool. Throws reynard::Error naming the argument for a wrong shape, dtype, device or value.
//   q           (N, H, D) dtype of the pool
//   logit_bound (H) f32, of keys as the pages keep them, or undefined: measured norms
//   window      a query sees itself and the window - 1 keys before it; 0: off
PagedOutput paged_attention(const at::Tensor& q,
                            std::span<const int64_t> offsets,
                            std::span<const LayerCache* const> caches,
                            const at::Tensor& logit_bound = {},
                            int64_t window = 0,
                            const AttentionOptions& options = {});

}  // namespace reynard::attention
