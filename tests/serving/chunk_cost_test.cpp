#include "reynard/serving/chunk_cost.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace reynard::serving {
namespace {

// Chunk lengths as the engine chooses them, from 512 down to the least, of chunks that take
// begin + per_token n seconds; the last one.
int64_t settled(double begin, double per_token, double allowed) {
  ChunkCost cost;
  int64_t tokens = 512;
  for (int i = 0; i < 60; ++i) {
    cost.add(tokens, begin + per_token * static_cast<double>(tokens));
    tokens = std::clamp<int64_t>(static_cast<int64_t>(cost.tokens_within(allowed)), 16, 512);
  }
  return tokens;
}

TEST(ChunkCost, FillsWhatIsAllowed) {
  // 20 ms at 0.1 ms a token; with 5 ms of any chunk 15 ms are left.
  EXPECT_NEAR(settled(0, 1e-4, 0.02), 200, 2);
  EXPECT_NEAR(settled(0.005, 1e-4, 0.02), 150, 5);
}

TEST(ChunkCost, DoesNotShrinkChunksThatWouldTakeAsLong) {
  // Any chunk takes 60 ms, three times what is allowed: 60 ms more are as many as its tokens take.
  EXPECT_GE(settled(0.06, 2e-4, 0.02), 250);
  EXPECT_LE(settled(0.06, 2e-4, 0.02), 350);
  EXPECT_EQ(settled(0.06, 1e-6, 0.02), 512);
}

TEST(ChunkCost, TakesAllForTheTokensWhereLengthsAreAlike) {
  ChunkCost cost;
  EXPECT_FALSE(cost.is_known());
  for (int i = 0; i < 5; ++i) cost.add(100, 0.05);
  ASSERT_TRUE(cost.is_known());
  EXPECT_NEAR(cost.tokens_within(0.01), 20, 1e-9);
}

TEST(ChunkCost, FollowsAMachineThatBecomesSlower) {
  ChunkCost cost;
  for (int i = 0; i < 20; ++i) cost.add(100, 0.01);
  for (int i = 0; i < 20; ++i) cost.add(100, 0.04);
  EXPECT_NEAR(cost.tokens_within(0.02), 50, 2);
}

}  // namespace
}  // namespace reynard::serving
