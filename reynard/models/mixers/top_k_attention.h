#pragma once
// Attention over the best keys of a memory: an exact search per query and head (knn/search.h), then
// a softmax over what it found. Differentiable in q and in the keys and values that were chosen.
// out and lse of a query that is not finite are NaN where it sees a key.

#include "reynard/attention/attention.h"
#include "reynard/models/layer_memory.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reynard::models {

// q (B, Tq, H, D), f32 or bf16, over the k best of the part's keys from first_key on; fewer where
// there are fewer. The part is not causal. Sums, where it has any, weigh the keys but do not choose
// them. -> out (B, Tq, H, D) and lse (B, H, Tq); no start.
attention::AttentionOutput top_k_attention(const at::Tensor& q,
                                           const at::Tensor& query_sums,
                                           const attention::KeyPart& part,
                                           int64_t k);

// q (1, Tq, H, D) over the k best entries of a sequence's memory, at most its size. No gradients.
attention::AttentionOutput top_k_attention(const at::Tensor& q,
                                           const at::Tensor& query_sums,
                                           const LayerMemory& memory,
                                           int64_t k);

// Two attentions, each normalised in itself, as one over both.
attention::AttentionOutput joined(const attention::AttentionOutput& a,
                                  const attention::AttentionOutput& b);

}  // namespace reynard::models
