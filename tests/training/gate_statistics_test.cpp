#include "reynard/training/gate_statistics.h"

#include <ATen/ops/log.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

namespace reynard::training {
namespace {

// Below 0.01 and above 0.99, over all layers.
TEST(GateStatistics, SharesOfClosedAndOpenGates) {
  GateStatistics statistics;
  EXPECT_FALSE(statistics.shares().closed);
  EXPECT_FALSE(statistics.shares().open);
  models::AttentionView view;
  view.log_gate = at::log(at::tensor({0.005F, 0.02F, 0.95F, 0.98F}));
  statistics.attention(0, view);
  view.log_gate = at::log(at::tensor({0.995F, 0.999F, 0.5F, 0.001F}));
  statistics.attention(1, view);
  EXPECT_EQ(statistics.shares().closed, 2.0 / 8);
  EXPECT_EQ(statistics.shares().open, 2.0 / 8);
  EXPECT_FALSE(statistics.shares().pruned);
}

}  // namespace
}  // namespace reynard::training
