#pragma once
// The forget gate: log sigmoid(logit + bias).

#include <ATen/core/Tensor.h>

namespace reynard::ops {

//   logits (N, H) f32, bias (H) f32  ->  (N, H) f32 <= 0. Differentiable.
at::Tensor log_gate(const at::Tensor& logits, const at::Tensor& bias);

}  // namespace reynard::ops
