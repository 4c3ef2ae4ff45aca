#include "reynard/serving/chunk_cost.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace reynard::serving {
namespace {

constexpr int64_t kLeast = 16, kMost = 512;

// Chunk lengths as the engine chooses them, from the first one on, of chunks that take begin +
// per_token n seconds; the last one.
int64_t settled(int64_t first, double begin, double per_token, double allowed) {
  ChunkCost cost(kLeast, kMost);
  int64_t tokens = first;
  for (int i = 0; i < 60; ++i) {
    cost.add(tokens, begin + per_token * static_cast<double>(tokens));
    tokens = cost.tokens_within(allowed);
  }
  return tokens;
}

TEST(ChunkCost, FillsWhatIsAllowed) {
  for (const int64_t first : {kLeast, int64_t{200}, kMost}) {
    // 20 ms at 0.1 ms a token; with 5 ms of any chunk 15 ms are left.
    EXPECT_NEAR(settled(first, 0, 1e-4, 0.02), 200, 2) << first;
    EXPECT_NEAR(settled(first, 0.005, 1e-4, 0.02), 150, 2) << first;
  }
}

TEST(ChunkCost, DoesNotShrinkChunksThatWouldTakeAsLong) {
  for (const int64_t first : {kLeast, int64_t{200}, kMost}) {
    // Any chunk takes 60 ms, three times what is allowed: 60 ms more are as many as its tokens
    // take.
    EXPECT_NEAR(settled(first, 0.06, 2e-4, 0.02), 300, 3) << first;
    // As on a GPU, where any chunk takes 8 ms: more, less and hardly less than what is allowed.
    for (const double allowed : {0.003, 0.009, 0.02}) {
      EXPECT_EQ(settled(first, 0.008, 1e-6, allowed), kMost) << first << ", " << allowed;
    }
  }
}

TEST(ChunkCost, BeginsWithTheLeastAndGrowsByAFactorOfFour) {
  ChunkCost cost(kLeast, kMost);
  EXPECT_EQ(cost.tokens_within(1), kLeast);
  cost.add(kLeast, 1e-6);
  EXPECT_EQ(cost.tokens_within(1), 4 * kLeast);
}

TEST(ChunkCost, FollowsAMachineThatBecomesSlower) {
  ChunkCost cost(kLeast, kMost);
  cost.add(50, 0.005);
  for (int i = 0; i < 20; ++i) cost.add(100, 0.01);
  EXPECT_NEAR(cost.tokens_within(0.02), 200, 1);
  for (int i = 0; i < 40; ++i) cost.add(100, 0.04);
  EXPECT_NEAR(cost.tokens_within(0.02), 50, 2);
}

}  // namespace
}  // namespace reynard::serving
