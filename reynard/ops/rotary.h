#pragma once
// Rotary position embedding, half-split pairs (j, j + D/2), on the full head dimension.

#include "reynard/ops/rotary_scaling.h"

#include <ATen/core/Tensor.h>

namespace reynard::ops {

// Rotates x by position * base^(-2j/D), changed as `scaling` says. Angles in f32 from exact integer
// positions; rotation in f32; result in x's dtype. Differentiable in x.
//   x (N, H, D), positions (N) i64: position of each token in its sequence (restarts with the
//   document); checked on the CPU only: reading them on a GPU would wait for the GPU
at::Tensor rotary(const at::Tensor& x,
                  const at::Tensor& positions,
                  double base,
                  const RotaryScaling& scaling = {});

// The angles themselves: position * frequency, (N, half) f32. With L0 = original_length,
// s = factor and f_j = base^(-j/half):
//   linear   f_j / s
//   dynamic  of base * (s L / L0 - (s - 1))^(D / (D - 2)), L = max(position + 1, L0): each token is
//            turned as if the text ended with it, so that caches and one pass over a text agree
//   yarn     f_j r + f_j / s (1 - r), r falling from 1 to 0 between the pairs that turn beta_fast
//            and beta_slow times within L0
//   llama3   the same mixture, r = (L0 f_j / 2 pi - low) / (high - low) within [0, 1]
at::Tensor rotary_angles(const at::Tensor& positions,
                         int64_t half,
                         double base,
                         const RotaryScaling& scaling = {});

// What cosines and sines are multiplied by: attention_factor of yarn, else 1.
double rotary_magnitude(const RotaryScaling& scaling);

}  // namespace reynard::ops
