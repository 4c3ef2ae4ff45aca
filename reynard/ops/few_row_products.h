#pragma once
// Products of few rows with whole weights, as decoding needs them: memory bounds them, so each
// weight is read once and as it lies there, its rows split between the threads of a CPU or the
// warps of a GPU, which has one launch for all weights that share their input; and of many rows
// with weights of few. No gradients. linear.h and product.h choose between these and others.

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace reynard::ops {

// Beyond, the library's blocked products win: a step of 16 rows through it took 7 times as long as
// a step of one row through these loops (134M parameters, bf16, two cores).
inline constexpr int64_t kFewRows = 32;
// Of two tiles of the matrix unit.
inline constexpr int64_t kFewGpuRows = 16;

struct RowWeight {
  at::Tensor values;  // (O, I) f32, bf16 or i8
  at::Tensor scales;  // (O) f32 of i8 values, else undefined
  // To bf16, as what is multiplied again has to be; false: the f32 sums. Those with f32 values are
  // never rounded.
  bool rounds = true;
};

// Whether there is a loop for these dtypes and this memory, and x has few rows.
bool has_few_row_product(const at::Tensor& x, const RowWeight& weight);

// y_w = x W_w^T for weights that share their input, in one parallel region. The bits of a row of y
// depend neither on the other rows nor on the number of threads. On a GPU, where weights have no
// int8 values, the kernel before may still run while weights are read: it must not write them.
//   x (N, I) f32 or bf16  ->  one (N, O_w) per weight: bf16 where it is rounded, else f32
std::vector<at::Tensor> few_row_products(const at::Tensor& x, std::span<const RowWeight> weights);

// Whether x is bf16 and w an f32 weight of few rows, like that of the gates; on a GPU x must not
// have very many.
bool has_few_output_product(const at::Tensor& x, const at::Tensor& w);

// x w^T for many rows of x, which are split between the threads: the same loops and the same bits
// as few_row_products.
//   x (N, I) bf16, w (O, I) f32  ->  (N, O) f32
at::Tensor few_output_product(const at::Tensor& x, const at::Tensor& w);

}  // namespace reynard::ops
