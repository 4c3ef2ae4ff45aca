#include "reynard/ops/cpu/rows.h"

#include <ATen/ops/zeros.h>

namespace reynard::ops::cpu {

at::Tensor sum_over_row_blocks(int64_t rows,
                               int64_t row_width,
                               const std::function<void(int64_t, int64_t, float*)>& body) {
  constexpr int64_t kBlockRows = 64;
  const int64_t num_blocks = (rows + kBlockRows - 1) / kBlockRows;
  const at::Tensor partial = at::zeros({num_blocks, row_width}, at::kFloat);
  float* sums = partial.data_ptr<float>();
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlockRows;
      body(first, std::min(rows, first + kBlockRows), sums + block * row_width);
    }
  });
  const at::Tensor total = at::zeros({row_width}, at::kFloat);
  float* out = total.data_ptr<float>();
  for (int64_t block = 0; block < num_blocks; ++block) {
    const float* from = sums + block * row_width;
    for (int64_t i = 0; i < row_width; ++i) out[i] += from[i];
  }
  return total;
}

}  // namespace reynard::ops::cpu
