#pragma once
// Cross entropy with the head's matrix product inside, in chunks of tokens: (N, V) never exists.

#include <ATen/core/Tensor.h>

namespace reynard::ops {

// sum_n mask_n * (lse(head hidden_n) - logit[target_n]), natural log, as a 0-dim f32 tensor;
// differentiable in hidden and head (both gradients are formed chunk by chunk in the forward pass).
//   hidden  (N, C)        head (V, C) f32 master, head_compute its bf16 copy or undefined
//   targets (N) i64       mask (N) f32 or undefined (all ones): 0 leaves a token out
// targets and mask may lie on the CPU whatever the device of hidden: token ids are then checked
// without waiting for a GPU.
at::Tensor cross_entropy(const at::Tensor& hidden,
                         const at::Tensor& head,
                         const at::Tensor& head_compute,
                         const at::Tensor& targets,
                         const at::Tensor& mask = {},
                         int64_t chunk_tokens = 2048);

struct TokenScores {
  at::Tensor logprob;  // (N) f32: log softmax of the target, natural log
  at::Tensor greedy;   // (N) i64: argmax over the vocabulary
};

// Scores without gradients, chunk by chunk; what evaluation reads. Logits are f32 (ops::logits),
// where those of cross_entropy have the dtype of the head's products. head_scales (V) f32: head is
// an int8 weight (int8_linear.h).
TokenScores score_tokens(const at::Tensor& hidden,
                         const at::Tensor& head,
                         const at::Tensor& head_compute,
                         const at::Tensor& targets,
                         int64_t chunk_tokens = 2048,
                         const at::Tensor& head_scales = {});

}  // namespace reynard::ops
