#pragma once
// How tensors meet the row loops: which dtypes and devices have them, and rows split between
// threads of the CPU or given to the GPU at once.

#include "reynard/ops/row_kernels.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/parallel.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string_view>

namespace reynard::ops {

// f32 and bf16 on the CPU, and on a GPU once libreynard_cuda.so is open.
bool has_row_kernels(const at::Tensor& x);
const RowKernels& row_kernels(const at::Tensor& x);

// Called once by libreynard_cuda.so while it is loaded.
void register_gpu_row_kernels(const RowKernels& f32, const RowKernels& bf16);

// Whether a graph is recorded of what is computed from these. An autograd function that records
// nothing still takes several times as long as a row of a decoded token.
inline bool is_recorded(std::initializer_list<at::Tensor> inputs) {
  return at::GradMode::is_enabled() && std::ranges::any_of(inputs, [](const at::Tensor& x) {
           return x.defined() && x.requires_grad();
         });
}

// Throws in a backward pass that is itself recorded (create_graph): the loops record nothing, and
// second derivatives would take its gradients for constants.
inline void check_first_derivative(std::string_view op) {
  tensor::check_value(!at::GradMode::is_enabled(),
                      op,
                      "create_graph",
                      "true",
                      "false: it has first derivatives only");
}

// t in this dtype, contiguous; undefined stays so. Asking the library for what is there already
// takes longer than many a row of a decoded token.
inline at::Tensor contiguous_as(at::ScalarType dtype, const at::Tensor& t) {
  if (!t.defined()) return t;
  return (t.scalar_type() == dtype ? t : t.to(dtype)).contiguous();
}

// Calls body(begin, end) for parts of [0, rows) on x's device: in parallel when there is enough to
// do, or all at once on a GPU, where body starts work and returns. Threads take parts as they
// become free: one that the system holds up is not waited for with half of the rows.
template <class Body>
void for_rows(const at::Tensor& x, int64_t rows, int64_t row_width, const Body& body) {
  constexpr int64_t kElementsPerThread = 16384;  // a thread's wake-up costs about as much
  if (!x.is_cpu()) {
    const c10::DeviceGuard device(x.device());
    body(0, rows);
    return;
  }
  constexpr int64_t kPartsPerThread = 8;
  const int64_t least = std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, row_width));
  const int64_t most_parts = kPartsPerThread * at::get_num_threads();
  const int64_t part = std::max(least, (rows + most_parts - 1) / most_parts);
  tensor::run_tasks((rows + part - 1) / part, [&](int64_t task, int64_t /*worker*/) {
    body(task * part, std::min(rows, (task + 1) * part));
  });
}

// Like for_rows for loops that add into one row of partial sums per block of kBlockRows rows,
// whatever thread takes it: body(begin, end, partial). Returns the sum of the partial rows
// (row_width) f32, added up in order.
at::Tensor sum_over_row_blocks(const at::Tensor& x,
                               int64_t rows,
                               int64_t row_width,
                               const std::function<void(int64_t, int64_t, float*)>& body);

}  // namespace reynard::ops
