#include "reynard/training/gate_statistics.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

namespace reynard::training {

namespace {

void count(at::Tensor& total, const at::Tensor& which) {
  const at::Tensor more = which.sum();
  total = total.defined() ? total + more : more;
}

}  // namespace

void GateStatistics::attention(int64_t /*layer*/, const models::AttentionView& view) {
  const at::NoGradGuard no_grad;
  if (view.log_gate.defined()) {
    gates_ += static_cast<double>(view.log_gate.numel());
    count(closed_, view.log_gate.lt(std::log(0.01)));
    count(open_, view.log_gate.gt(std::log(0.99)));
  }
  if (view.start.defined()) {
    tiles_.push_back(
        {.q = {}, .k = {}, .log_gate = {}, .start = view.start, .first_key = view.first_key});
  }
}

GateShares GateStatistics::shares() const {
  GateShares shares;
  if (gates_ > 0) {
    shares.closed = closed_.item<double>() / gates_;
    shares.open = open_.item<double>() / gates_;
  }
  double pruned = 0, heads = 0;
  for (const models::AttentionView& view : tiles_) {
    for (const double share : models::pruned_tiles(view)) {
      pruned += share;
      ++heads;
    }
  }
  if (heads > 0) shares.pruned = pruned / heads;
  return shares;
}

}  // namespace reynard::training
