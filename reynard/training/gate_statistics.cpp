#include "reynard/training/gate_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace reynard::training {

namespace {

constexpr int64_t kTileQueries = 128;
constexpr int64_t kTileKeys = 64;

int64_t tiles_between(int64_t first_key, int64_t end_key) {
  return std::max<int64_t>(0, (end_key + kTileKeys - 1) / kTileKeys - first_key / kTileKeys);
}

}  // namespace

void GateStatistics::attention(int64_t /*layer*/, const models::AttentionView& view) {
  const at::NoGradGuard no_grad;
  if (view.log_gate.defined()) {
    gates_ += static_cast<double>(view.log_gate.numel());
    closed_ += view.log_gate.lt(std::log(0.01)).sum().item<double>();
    open_ += view.log_gate.gt(std::log(0.99)).sum().item<double>();
  }
  if (!view.start.defined()) return;
  const int64_t num_tokens = view.q.size(0);
  const at::Tensor start = view.start.to(at::kInt).contiguous();
  const at::Tensor first_key =
      view.first_key.defined() ? view.first_key.to(at::kInt).contiguous() : at::Tensor();
  const int32_t* starts = start.const_data_ptr<int32_t>();
  const int32_t* first_keys = first_key.defined() ? first_key.const_data_ptr<int32_t>() : nullptr;
  const int64_t num_blocks = start.size(1);
  for (int64_t head = 0; head < start.size(0); ++head) {
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t row = block * kTileQueries;
      const int64_t end = std::min(num_tokens, row + kTileQueries);
      const int64_t visible = first_keys ? first_keys[row] : 0;
      const int64_t kept = std::max<int64_t>(visible, starts[head * num_blocks + block]);
      const int64_t all = tiles_between(visible, end);
      tiles_ += static_cast<double>(all);
      pruned_ += static_cast<double>(all - std::min(all, tiles_between(kept, end)));
    }
  }
}

}  // namespace reynard::training
