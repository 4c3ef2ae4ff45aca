#pragma once
// What a run says about its attention: how many gates are saturated and how much is pruned.

#include "reynard/models/observer.h"

#include <optional>
#include <vector>

namespace reynard::training {

struct GateShares {
  std::optional<double> closed;  // share of gates with f < 0.01, f = exp(log_gate)
  std::optional<double> open;    // share with f > 0.99
  // Share of the attention's 128 x 64 tiles that pruning skips, mean over the heads of which it is
  // known (AttentionView::start).
  std::optional<double> pruned;
};

// Over every layer that it is shown. Nothing waits for the device before shares().
class GateStatistics : public models::Observer {
 public:
  bool wants(int64_t /*layer*/) override { return true; }
  void attention(int64_t layer, const models::AttentionView& view) override;

  // What was not seen is empty.
  GateShares shares() const;

 private:
  double gates_ = 0;
  at::Tensor closed_, open_;                  // counts on the device
  std::vector<models::AttentionView> tiles_;  // start and first_key only
};

}  // namespace reynard::training
