#include "reynard/serving/chunk_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>

namespace reynard::serving {
namespace {

constexpr int64_t kLeast = 16, kMost = 512;

// Seconds of a chunk of so many tokens, the i-th.
using Seconds = std::function<double(int i, int64_t tokens)>;

Seconds always(double begin, double per_token) {
  return [=](int /*i*/, int64_t tokens) { return begin + per_token * static_cast<double>(tokens); };
}

// Chunk lengths as the engine chooses them, from the first one on; the longest of the last ones,
// among which may be shorter ones to learn from.
int64_t settled(int64_t first, const Seconds& seconds, double allowed) {
  ChunkCost cost(kLeast, kMost);
  int64_t tokens = first, longest = 0;
  for (int i = 0; i < 80; ++i) {
    cost.add(tokens, seconds(i, tokens));
    tokens = cost.tokens_within(allowed);
    if (i >= 70) longest = std::max(longest, tokens);
  }
  return longest;
}

TEST(ChunkCost, FillsWhatIsAllowed) {
  for (const int64_t first : {kLeast, int64_t{200}, kMost}) {
    // 20 ms at 0.1 ms a token; with 5 ms of any chunk 15 ms are left.
    EXPECT_NEAR(settled(first, always(0, 1e-4), 0.02), 200, 2) << first;
    EXPECT_NEAR(settled(first, always(0.005, 1e-4), 0.02), 150, 2) << first;
  }
}

TEST(ChunkCost, DoesNotShrinkChunksThatWouldTakeAsLong) {
  for (const int64_t first : {kLeast, int64_t{200}, kMost}) {
    // Any chunk takes 60 ms, three times what is allowed: 60 ms more are as many as its tokens
    // take.
    EXPECT_NEAR(settled(first, always(0.06, 2e-4), 0.02), 300, 3) << first;
    // As on a GPU, where any chunk takes 8 ms: more, less and hardly less than what is allowed.
    for (const double allowed : {0.003, 0.009, 0.02}) {
      EXPECT_EQ(settled(first, always(0.008, 1e-6), allowed), kMost) << first << ", " << allowed;
    }
  }
}

// The first chunks of a process may take long for reasons of their own.
TEST(ChunkCost, FindsOutWhatADisturbedChunkTold) {
  for (int disturbed = 0; disturbed < 20; ++disturbed) {
    const auto seconds = [&](int i, int64_t tokens) {
      return (i == disturbed ? 0.1 : 0.008) + 1e-6 * static_cast<double>(tokens);
    };
    EXPECT_EQ(settled(kLeast, seconds, 0.006), kMost) << disturbed;
  }
}

TEST(ChunkCost, BeginsWithTheLeastAndGrowsByAFactorOfTwo) {
  ChunkCost cost(kLeast, kMost);
  EXPECT_EQ(cost.tokens_within(1), kLeast);
  cost.add(kLeast, 1e-6);
  EXPECT_EQ(cost.tokens_within(1), 2 * kLeast);
}

TEST(ChunkCost, FollowsAMachineThatBecomesSlower) {
  const auto seconds = [&](int i, int64_t tokens) {
    return (i < 20 ? 1e-4 : 4e-4) * static_cast<double>(tokens);
  };
  EXPECT_NEAR(settled(100, seconds, 0.02), 50, 2);
}

}  // namespace
}  // namespace reynard::serving
