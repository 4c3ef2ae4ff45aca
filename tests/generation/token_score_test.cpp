#include "reynard/generation/token_score.h"

#include "tests/support/errors.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace reynard::generation {
namespace {

std::vector<int64_t> top_of(const at::Tensor& logits, int64_t num_top) {
  const std::array<int64_t, 1> token = {0};
  const std::vector<ScoredToken> scored =
      score_tokens(logits, token, {.logprobs = true, .num_top = num_top});
  std::vector<int64_t> ids;
  for (const TokenScore& score : scored[0].top) ids.push_back(score.token);
  return ids;
}

// As the sampler: of equal ones the lower id, where the list ends too.
TEST(ScoreTokens, EqualOnesAreListedByTheirIds) {
  using Ids = std::vector<int64_t>;
  for (const int64_t V : {9, 300, 5000}) {
    const at::Tensor logits = at::zeros({1, V});
    logits[0][3] = 2;
    logits[0][7] = 2;
    EXPECT_EQ(top_of(logits, 1), (Ids{3})) << V;
    EXPECT_EQ(top_of(logits, 2), (Ids{3, 7})) << V;
    EXPECT_EQ(top_of(logits, 5), (Ids{3, 7, 0, 1, 2})) << V;
    logits[0][5] = 3;
    EXPECT_EQ(top_of(logits, 2), (Ids{5, 3})) << V;
  }
}

TEST(ScoreTokens, OfEachRowAndAtMostAllTokens) {
  const at::Tensor logits = at::zeros({2, 4});
  logits[0][2] = 1;
  logits[1][1] = 1;
  const std::array<int64_t, 2> tokens = {2, 0};
  const std::vector<ScoredToken> scored =
      score_tokens(logits, tokens, {.logprobs = true, .num_top = 9});
  const double log_sum = std::log(3 + std::exp(1.0));
  ASSERT_EQ(scored.size(), 2U);
  EXPECT_NEAR(scored[0].logprob, 1 - log_sum, 1e-6);
  EXPECT_NEAR(scored[1].logprob, -log_sum, 1e-6);
  for (const ScoredToken& token : scored) ASSERT_EQ(token.top.size(), 4U);
  EXPECT_EQ(scored[0].top[0].token, 2);
  EXPECT_EQ(scored[1].top[0].token, 1);
  EXPECT_EQ(scored[1].top[1].logprob, scored[1].logprob);
  EXPECT_TRUE(score_tokens(logits, tokens, {.logprobs = true})[0].top.empty());
  EXPECT_TRUE(std::isnan(score_tokens(logits, tokens, {})[1].logprob));
}

TEST(ScoreTokens, RejectsWhatIsNotFinite) {
  const std::array<int64_t, 1> token = {1};
  const at::Tensor logits = at::full({1, 3}, std::numeric_limits<float>::quiet_NaN());
  EXPECT_SAYS(test::error_of([&] { score_tokens(logits, token, {.logprobs = true}); }),
              "score_tokens: the log-probability of token 1 is nan; expected a finite number");
  EXPECT_SAYS(test::error_of([&] { score_tokens(at::zeros({2, 3}), token, {}); }), "logits");
}

}  // namespace
}  // namespace reynard::generation
