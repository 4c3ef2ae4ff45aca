#include "reynard/ops/rows.h"

#include "reynard/ops/cpu/row_path.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <vector>

namespace reynard::ops {

namespace {

// By Element; null until libreynard_cuda.so is open.
std::array<const RowKernels*, 2>& gpu_tables() {
  static std::array<const RowKernels*, 2> tables = {};
  return tables;
}

}  // namespace

void register_gpu_row_kernels(const RowKernels& f32, const RowKernels& bf16) {
  gpu_tables() = {&f32, &bf16};
}

bool has_row_kernels(const at::Tensor& x) {
  const bool dtype = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
  return dtype && (x.is_cpu() || (x.is_cuda() && gpu_tables()[0] != nullptr));
}

const RowKernels& row_kernels(const at::Tensor& x) {
  const Element element = x.scalar_type() == at::kFloat ? Element::kF32 : Element::kBF16;
  return x.is_cpu() ? cpu::row_kernels(element) : *gpu_tables().at(static_cast<size_t>(element));
}

at::Tensor sum_over_row_blocks(const at::Tensor& x,
                               int64_t rows,
                               int64_t row_width,
                               const std::function<void(int64_t, int64_t, float*)>& body) {
  const int64_t num_blocks = (rows + kBlockRows - 1) / kBlockRows;
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat).device(x.device());
  if (!x.is_cpu()) {
    const c10::DeviceGuard device(x.device());
    const at::Tensor partial = at::empty({num_blocks, row_width}, options);
    const at::Tensor total = at::empty({row_width}, options);
    body(0, rows, partial.data_ptr<float>());
    row_kernels(x).column_sums({.partial = partial.const_data_ptr<float>(),
                                .rows = num_blocks,
                                .width = row_width,
                                .sums = total.data_ptr<float>()},
                               0,
                               row_width);
    return total;
  }
  const at::Tensor partial = at::zeros({num_blocks, row_width}, options);
  float* sums = partial.data_ptr<float>();
  for_rows(x, num_blocks, kBlockRows * row_width, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlockRows;
      body(first, std::min(rows, first + kBlockRows), sums + block * row_width);
    }
  });
  std::vector<double> totals(row_width);  // f64: there may be thousands of blocks
  for (int64_t block = 0; block < num_blocks; ++block) {
    const float* from = sums + block * row_width;
    for (int64_t i = 0; i < row_width; ++i) totals[i] += from[i];
  }
  const at::Tensor total = at::empty({row_width}, at::kFloat);
  std::copy(totals.begin(), totals.end(), total.data_ptr<float>());
  return total;
}

}  // namespace reynard::ops
