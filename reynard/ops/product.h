#pragma once
// Matrix products whose result is wider than their factors: sums are f32 in every library, and a
// GPU's can be had before they are rounded.

#include "reynard/ops/block_product.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace reynard::ops {

// a b in the dtype `out`, without it in that of the factors. On a GPU, where block_product.h has
// one, and on a CPU without instructions for bf16, the f32 product of bf16 factors is not rounded
// on its way; elsewhere it is rounded to the factors' dtype first.
//   a (M, K), b (K, N) of one dtype  ->  (M, N)
at::Tensor product(const at::Tensor& a, const at::Tensor& b, at::ScalarType out);
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

// The same by the library; bf16 on a CPU that has no instructions for it in f32.
at::Tensor library_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType out);

// a b in f32 that nothing rounds on its way: where no product of the dtype of the factors has such
// sums, theirs are formed in f32, of a few MB of b at a time.
//   a (M, K), b (K, N) of one dtype, f64 not  ->  (M, N) f32
at::Tensor unrounded_product(const at::Tensor& a, const at::Tensor& b);

// The sum of all a b in the dtype `out`.
struct SumOfProducts {
  std::vector<Factors> terms;
  at::ScalarType out;
};

// Each sum, (M, N), with the rounding of product(); a term that the library forms is rounded before
// it is added. Sums whose factors are the same matrix or which no other waits for are best asked
// for together.
std::vector<at::Tensor> sums_of_products(std::span<const SumOfProducts> sums);

// sum += a b, with the same rounding.   sum (M, N)
void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

// x w^T in f32 for a w that must not be rounded: on a GPU w is the sum of three bf16 matrices (24
// bits), which the matrix unit multiplies; elsewhere x is widened, value by value where w is small.
//   x (N, I) any dtype, w (O, I) f32  ->  (N, O) f32
at::Tensor exact_product(const at::Tensor& x, const at::Tensor& w);

}  // namespace reynard::ops
