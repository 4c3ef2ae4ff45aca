#include "reynard/generation/sampler.h"

#include "reynard/tensor/check.h"
#include "tests/support/errors.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <vector>

namespace reynard::generation {
namespace {

const at::Tensor kLogits = at::tensor({0.0F, 2.0F, 1.0F, -1.0F});

TEST(Sampler, GreedyTakesTheMostProbableAndOfEqualsTheFirst) {
  Sampler greedy({});
  EXPECT_EQ(greedy.next(kLogits), 1);
  EXPECT_EQ(greedy.next(at::tensor({3.0F, 5.0F, 5.0F})), 1);
}

TEST(Sampler, FollowsTheDistributionAtItsTemperature) {
  for (const double temperature : {0.5, 1.0, 2.0}) {
    Sampler sampler({.temperature = temperature, .seed = 7});
    std::map<int64_t, int> counts;
    const int draws = 4000;
    for (int i = 0; i < draws; ++i) ++counts[sampler.next(kLogits)];
    double total = 0;
    for (const double x : {0.0, 2.0, 1.0, -1.0}) total += std::exp(x / temperature);
    for (int64_t id = 0; id < 4; ++id) {
      const double p = std::exp(kLogits[id].item<double>() / temperature) / total;
      // Five standard deviations of a binomial.
      EXPECT_NEAR(counts[id] / double{draws}, p, 5 * std::sqrt(p * (1 - p) / draws)) << id;
    }
  }
}

// Quotients of logits by such temperatures overflow; their differences decide all the same.
TEST(Sampler, TemperaturesNearZeroAreGreedy) {
  for (const double temperature : {1e-3, 1e-300, 5e-324}) {
    for (const double min_p : {0.0, 0.1}) {
      Sampler sampler({.temperature = temperature, .min_p = min_p, .seed = 1});
      for (int i = 0; i < 20; ++i) EXPECT_EQ(sampler.next(kLogits), 1) << temperature;
    }
  }
  const double always = std::numeric_limits<double>::infinity();
  Sampler biased({.logit_bias = {{0, always}}, .temperature = 1, .seed = 1});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(biased.next(kLogits), 0);
  Sampler of_two({.logit_bias = {{0, always}, {3, always}}, .temperature = 1, .seed = 1});
  std::set<int64_t> ids;
  for (int i = 0; i < 20; ++i) ids.insert(of_two.next(kLogits));
  EXPECT_EQ(ids, (std::set<int64_t>{0, 3}));
}

std::set<int64_t> drawn(const SamplerOptions& options) {
  Sampler sampler(options);
  std::set<int64_t> ids;
  for (int i = 0; i < 500; ++i) ids.insert(sampler.next(kLogits));
  return ids;
}

// p = 0.087, 0.644, 0.237, 0.032.
TEST(Sampler, LimitsKeepOnlyTheMostProbable) {
  using Ids = std::set<int64_t>;
  EXPECT_EQ(drawn({.temperature = 1}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 2}), (Ids{1, 2}));
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 9}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.6}), Ids{1});
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.65}), (Ids{1, 2}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 1}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.3}), (Ids{1, 2}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 1}), Ids{1});
  // Of the two that top_k leaves, 1 has 0.73.
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 2, .top_p = 0.7}), Ids{1});
}

// Two of four have half of the probability.
TEST(Sampler, OfEqualTokensTheFirstStayWithinTheLimits) {
  for (const SamplerOptions& options : {SamplerOptions{.temperature = 1, .top_k = 2},
                                        SamplerOptions{.temperature = 1, .top_p = 0.5}}) {
    Sampler sampler(options);
    std::set<int64_t> ids;
    for (int i = 0; i < 100; ++i) ids.insert(sampler.next(at::zeros({4})));
    EXPECT_EQ(ids, (std::set<int64_t>{0, 1}));
  }
}

TEST(Sampler, TopKKeepsTheShares) {
  Sampler sampler({.temperature = 1, .top_k = 2, .seed = 4});
  int first = 0;
  const int draws = 4000;
  for (int i = 0; i < draws; ++i) first += sampler.next(kLogits) == 1 ? 1 : 0;
  const double p = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(first / double{draws}, p, 5 * std::sqrt(p * (1 - p) / draws));
}

TEST(Sampler, PenaltiesCountWhatWasSeen) {
  const std::vector<int64_t> prompt{1};
  // 2 / 4 < 1: token 2 takes over, then 1 / 4 < 0.5 of token 1.
  Sampler repetition({.repetition_penalty = 4});
  repetition.read_prompt(prompt);
  EXPECT_EQ(repetition.next(kLogits), 2);
  EXPECT_EQ(repetition.next(kLogits), 1);
  // Presence and frequency leave the prompt alone.
  Sampler presence({.presence_penalty = 1.5});
  presence.read_prompt(prompt);
  EXPECT_EQ(presence.next(kLogits), 1);
  EXPECT_EQ(presence.next(kLogits), 2);  // 0.5 against 1
  EXPECT_EQ(presence.next(kLogits), 1);  // 0.5 against -0.5, however often it came
  EXPECT_EQ(presence.next(kLogits), 1);
  Sampler frequency({.frequency_penalty = 0.4});
  const std::vector<int64_t> expected{1, 1, 1, 2, 1, 2};  // 2, 1.6, 1.2, 0.8 < 1 ...
  for (const int64_t token : expected) EXPECT_EQ(frequency.next(kLogits), token);
}

TEST(Sampler, BiasMovesLogits) {
  Sampler up({.logit_bias = {{3, 4.0}}});
  EXPECT_EQ(up.next(kLogits), 3);
  const double never = -std::numeric_limits<double>::infinity();
  Sampler ban({.logit_bias = {{1, never}}, .temperature = 1, .seed = 2});
  for (int i = 0; i < 200; ++i) EXPECT_NE(ban.next(kLogits), 1);
  Sampler outside({.logit_bias = {{4, 1.0}}});
  EXPECT_THROW(outside.next(kLogits), Error);
}

// inf - inf leaves no order of the tokens, whatever the temperature.
TEST(Sampler, SumsThatAreNoNumberAreErrors) {
  const double always = std::numeric_limits<double>::infinity();
  for (const double temperature : {0.0, 1.0}) {
    const SamplerOptions both = {.logit_bias = {{2, always}, {0, 1.0}, {2, -always}},
                                 .temperature = temperature};
    EXPECT_SAYS(test::error_of([&] { Sampler{both}; }),
                "sampler: sum of logit_bias of token 2 = inf - inf; expected a number");
    Sampler penalized({.repetition_penalty = 1e-308,
                       .frequency_penalty = 1e308,
                       .logit_bias = {{2, 1e6}},
                       .temperature = temperature});
    EXPECT_EQ(penalized.next(kLogits), 2);
    const at::Tensor high = at::tensor({0.0F, 0.0F, 3.0F, 0.0F});  // 3 / 1e-308 is inf
    EXPECT_EQ(penalized.next(high), 2);                            // inf - 1e308
    EXPECT_SAYS(test::error_of([&] { penalized.next(high); }),     // inf - 2e308
                "sampler: the logit of token 2 is inf - inf after the penalties and logit_bias");
  }
  Sampler lifted({.logit_bias = {{1, always}, {1, always}}});
  EXPECT_EQ(lifted.next(kLogits), 1);
}

TEST(Sampler, SameSeedSameTokens) {
  Sampler first({.temperature = 1, .seed = 3});
  Sampler second({.temperature = 1, .seed = 3});
  Sampler third({.temperature = 1, .seed = 3});
  third.reseed(4);
  bool differs = false;
  for (int i = 0; i < 50; ++i) {
    const int64_t token = first.next(kLogits);
    EXPECT_EQ(token, second.next(kLogits));
    differs |= token != third.next(kLogits);
  }
  EXPECT_TRUE(differs);
}

TEST(Sampler, RejectsWhatMakesNoSense) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const SamplerOptions endless = {.temperature = std::numeric_limits<double>::infinity()};
  EXPECT_SAYS(test::error_of([&] { Sampler{endless}; }),
              "temperature = inf; expected a finite number >= 0");
  EXPECT_THROW(Sampler({.temperature = -1}), Error);
  EXPECT_THROW(Sampler({.temperature = nan}), Error);
  EXPECT_THROW(Sampler({.top_k = -1}), Error);
  EXPECT_THROW(Sampler({.min_p = 1.5}), Error);
  EXPECT_THROW(Sampler({.repetition_penalty = 0}), Error);
  EXPECT_THROW(Sampler({.presence_penalty = nan}), Error);
  EXPECT_THROW(Sampler({.frequency_penalty = nan}), Error);
  EXPECT_THROW(Sampler({.logit_bias = {{1, nan}}}), Error);
  try {
    Sampler({.top_p = 1.0000001});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "sampler: top_p = 1.0000001; expected 0 to 1, 0: all");
  }
  Sampler sampler({});
  const auto infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    EXPECT_SAYS(test::error_of([&] {
                  sampler.next(at::tensor({1.0F, bad, 2.0F}));
                }),
                fmt::format("sampler: the logit of token 1 is {}; expected a finite number", bad));
  }
  EXPECT_THROW(sampler.next(at::zeros({0})), Error);
}

}  // namespace
}  // namespace reynard::generation
