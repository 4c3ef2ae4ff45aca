#include "reynard/training/gate_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

namespace reynard::training {

void GateStatistics::attention(int64_t /*layer*/, const models::AttentionView& view) {
  const at::NoGradGuard no_grad;
  if (view.log_gate.defined()) {
    gates_ += static_cast<double>(view.log_gate.numel());
    closed_ += view.log_gate.lt(std::log(0.01)).sum().item<double>();
    open_ += view.log_gate.gt(std::log(0.99)).sum().item<double>();
  }
  if (!view.start.defined()) return;
  for (const double share : models::pruned_tiles(view)) pruned_ += share;
  heads_ += static_cast<double>(view.start.size(0));
}

}  // namespace reynard::training
