#pragma once
// Rotary position embedding, half-split pairs (j, j + D/2), on the full head dimension.

#include <ATen/core/Tensor.h>

namespace reynard::ops {

// Rotates x by position * base^(-2j/D). Angles in f32 from exact integer positions; rotation in
// f32; result in x's dtype. Differentiable in x.
//   x (N, H, D), positions (N) i64: position of each token in its sequence (restarts with the
//   document); checked on the CPU only: reading them on a GPU would wait for the GPU
at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, double base);

// The angles themselves: position * base^(-j/half), (N, half) f32.
at::Tensor rotary_angles(const at::Tensor& positions, int64_t half, double base);

}  // namespace reynard::ops
