#include "reynard/ops/cpu/rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace reynard::ops::cpu {

at::Tensor sum_over_row_blocks(int64_t rows,
                               int64_t row_width,
                               const std::function<void(int64_t, int64_t, float*)>& body) {
  constexpr int64_t kBlockRows = 32;
  const int64_t num_blocks = (rows + kBlockRows - 1) / kBlockRows;
  const at::Tensor partial = at::zeros({num_blocks, row_width}, at::kFloat);
  float* sums = partial.data_ptr<float>();
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
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

}  // namespace reynard::ops::cpu
