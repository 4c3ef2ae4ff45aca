#pragma once
// What a run says about its attention: how many gates are saturated and how much is pruned.

#include "reynard/models/observer.h"

namespace reynard::training {

// Sums over every layer that it is shown; f = exp(log_gate).
class GateStatistics : public models::Observer {
 public:
  bool wants(int64_t /*layer*/) override { return true; }
  void attention(int64_t layer, const models::AttentionView& view) override;

  bool has_gates() const { return gates_ > 0; }
  bool has_tiles() const { return heads_ > 0; }
  double gates_closed() const { return closed_ / gates_; }  // share with f < 0.01
  double gates_open() const { return open_ / gates_; }      // share with f > 0.99
  // Share of the attention's 128 x 64 tiles that pruning skips, mean of all layers' heads.
  double pruned_share() const { return pruned_ / heads_; }

 private:
  double gates_ = 0, closed_ = 0, open_ = 0, heads_ = 0, pruned_ = 0;
};

}  // namespace reynard::training
