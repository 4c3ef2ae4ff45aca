#pragma once
// Products of bf16 matrices of many rows on the CPU, where it multiplies bf16 by vector
// instructions: factors in any of both layouts, results in bf16 or, not rounded, in f32. The bits
// do not depend on the number of threads. product.h chooses between these and the library's.

#include <ATen/core/Tensor.h>

namespace reynard::ops {

// Whether a b can be formed here: dtype, device, this machine's path, and enough work.
bool has_block_product(const at::Tensor& a, const at::Tensor& b);

// c = a b, or c + a b where `add` is set; bf16 results are rounded once.
//   a (M, K), b (K, N) bf16, c (M, N) f32 or bf16 with contiguous rows
void block_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, bool add);

}  // namespace reynard::ops
