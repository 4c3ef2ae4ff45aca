#pragma once
// Matrix product with an f32 master weight and, for mixed precision, its bf16 compute copy.

#include <ATen/core/Tensor.h>

namespace reynard::ops {

// y = x W^T. When `compute` is defined the products run in its dtype (x is cast to it), and the
// weight's gradient reaches the f32 master `weight`. bias (O) may be undefined; it is added in f32.
//   x (N, I), weight (O, I) f32, compute (O, I) bf16 or undefined  ->  (N, O) dtype of the product
at::Tensor linear(const at::Tensor& x,
                  const at::Tensor& weight,
                  const at::Tensor& compute = {},
                  const at::Tensor& bias = {});

}  // namespace reynard::ops
