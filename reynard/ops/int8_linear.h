#pragma once
// Matrix product with an int8 weight: each row (output channel) has one scale, symmetric around 0.
// For inference only: no gradients. Activations are bf16, sums f32.

#include <ATen/core/Tensor.h>

namespace reynard::ops {

struct Int8Weight {
  at::Tensor values;  // (O, I) i8, -127 to 127
  at::Tensor scales;  // (O) f32: weight = values * scale, scale = max |row| / 127
};

// weight (O, I), any floating dtype. Rounds to nearest; a row of zeros has scale 0.
Int8Weight quantize_rows(const at::Tensor& weight);

// y = x W^T: x (N, I) -> (N, O) bf16, or f32 that was never rounded to bf16, as `out` says.
at::Tensor int8_linear(const at::Tensor& x,
                       const Int8Weight& weight,
                       at::ScalarType out = at::kBFloat16);

}  // namespace reynard::ops
