#pragma once
// How tensors meet the row loops: which dtypes they take, and rows split between threads.

#include "reynard/ops/cpu/row_path.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>

namespace reynard::ops::cpu {

inline bool has_row_kernels(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

inline const RowKernels& row_kernels(const at::Tensor& x) {
  return row_kernels(x.scalar_type() == at::kFloat ? Element::kF32 : Element::kBF16);
}

// Calls body(begin, end) for parts of [0, rows), in parallel when there is enough to do.
template <class Body>
void for_rows(int64_t rows, int64_t row_width, const Body& body) {
  constexpr int64_t kElementsPerThread = 16384;  // a thread's wake-up costs about as much
  const int64_t grain = std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, row_width));
  at::parallel_for(0, rows, grain, body);
}

// Like for_rows for loops that add into one row of partial sums per block of 32 rows, whatever
// thread takes it: body(begin, end, partial). Returns the sum of the partial rows (row_width) f32,
// added up in order.
at::Tensor sum_over_row_blocks(int64_t rows,
                               int64_t row_width,
                               const std::function<void(int64_t, int64_t, float*)>& body);

}  // namespace reynard::ops::cpu
