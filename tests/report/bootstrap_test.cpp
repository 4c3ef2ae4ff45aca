// Intervals and p-values of a mean difference: how often chance alone is called one.

#include "reynard/report/compare.h"

#include "reynard/tensor/error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace reynard::report {
namespace {

// Loss of a document: its difficulty, which both runs share, and what is each run's own.
std::vector<double> losses(std::mt19937_64& random,
                           const std::vector<double>& difficulty,
                           double own) {
  std::normal_distribution<double> noise(0, own);
  std::vector<double> values;
  for (const double d : difficulty) values.push_back(d + noise(random));
  return values;
}

std::vector<double> difficulties(std::mt19937_64& random, int64_t count) {
  std::lognormal_distribution<double> spread(1, 0.4);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(spread(random));
  return values;
}

std::vector<double> minus(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> difference;
  for (size_t i = 0; i < a.size(); ++i) difference.push_back(a[i] - b[i]);
  return difference;
}

// 5 % are expected; of 400 comparisons, 7 % is two standard deviations more.
TEST(BootstrapMean, CallsChanceADifferenceInAtMost7Of100) {
  std::mt19937_64 random(1);
  for (const int64_t samples : {8, 16, 64}) {
    int64_t false_differences = 0;
    constexpr int kComparisons = 400;
    for (int i = 0; i < kComparisons; ++i) {
      const auto difficulty = difficulties(random, samples);
      const auto difference =
          minus(losses(random, difficulty, 0.05), losses(random, difficulty, 0.05));
      const Bootstrap result =
          bootstrap_mean(difference, {.resamples = 999, .seed = static_cast<uint64_t>(i)});
      false_differences += result.p_value < 0.05 ? 1 : 0;
      EXPECT_EQ(result.p_value<0.05, result.low> 0 || result.high < 0);
    }
    EXPECT_LE(false_differences, kComparisons * 7 / 100) << samples << " samples";
  }
}

TEST(BootstrapMean, SeesADifferenceThatIsThere) {
  std::mt19937_64 random(2);
  int64_t seen = 0;
  for (int i = 0; i < 100; ++i) {
    const auto difficulty = difficulties(random, 64);
    auto worse = losses(random, difficulty, 0.05);
    for (double& x : worse) x += 0.05;
    const Bootstrap result = bootstrap_mean(minus(worse, losses(random, difficulty, 0.05)));
    seen += result.p_value < 0.05 ? 1 : 0;
  }
  EXPECT_GE(seen, 99);
}

TEST(BootstrapMean, IsTheSameForTheSameSeedAndKnowsItsEdges) {
  const std::vector<double> values{0.1, -0.2, 0.4, 0.3, 0.05};
  EXPECT_EQ(bootstrap_mean(values).p_value, bootstrap_mean(values).p_value);
  EXPECT_EQ(bootstrap_mean(std::vector<double>(5, 0.0)).p_value, 1);
  EXPECT_THROW(bootstrap_mean(std::vector<double>{1}), Error);
}

// Two fair coins fall on the same side every other time.
TEST(BootstrapMean, DifferencesThatAreAlikeAreTestedByTheirSigns) {
  for (const int n : {2, 3, 5, 12}) {
    for (const double x : {0.5, -0.1}) {
      const Bootstrap result = bootstrap_mean(std::vector<double>(n, x));
      EXPECT_DOUBLE_EQ(result.p_value, std::exp2(1 - n)) << n;
      EXPECT_NEAR(result.mean, x, 1e-15);
      EXPECT_TRUE(std::isnan(result.low) && std::isnan(result.high)) << n;
    }
  }
  EXPECT_EQ(bootstrap_mean(std::vector<double>{0.1 + 0.2, 0.3}).p_value, 0.5);  // but for rounding
}

// Answers to the same questions by two models that are right as often. 5 % are expected at most.
TEST(BootstrapMean, CallsChanceOfAnswersADifferenceInAtMost7Of100) {
  std::mt19937_64 random(3);
  constexpr int kComparisons = 400;
  for (const int64_t samples : {8, 50, 250}) {
    for (const double share : {0.02, 0.1, 0.5}) {  // of questions that one of both answers
      std::bernoulli_distribution differs(share);
      std::bernoulli_distribution coin(0.5);
      int64_t false_differences = 0;
      for (int i = 0; i < kComparisons; ++i) {
        std::vector<double> difference;
        for (int64_t q = 0; q < samples; ++q) {
          difference.push_back(!differs(random) ? 0 : coin(random) ? 100 : -100);
        }
        const Bootstrap result = bootstrap_mean(
            difference, {.resamples = 999, .seed = static_cast<uint64_t>(i), .largest = 100});
        false_differences += result.p_value < 0.05 ? 1 : 0;
        EXPECT_FALSE(result.low < -100 || result.high > 100);
      }
      EXPECT_LE(false_differences, kComparisons * 7 / 100) << samples << " samples, " << share;
    }
  }
}

// One model answers nearly all questions, the other none: 95 % of the intervals hold the truth. Of
// 400, 92 % is three standard deviations less.
TEST(BootstrapMean, IntervalsOfAnswersThatAreMostlyAlikeHoldTheTruth) {
  std::mt19937_64 random(4);
  std::bernoulli_distribution right(0.9);
  int64_t held = 0;
  constexpr int kComparisons = 400;
  for (int i = 0; i < kComparisons; ++i) {
    std::vector<double> difference;
    for (int q = 0; q < 50; ++q) difference.push_back(right(random) ? 100 : 0);
    const Bootstrap result = bootstrap_mean(
        difference, {.resamples = 999, .seed = static_cast<uint64_t>(i), .largest = 100});
    held += result.low <= 90 && 90 <= result.high ? 1 : 0;
  }
  EXPECT_GE(held, kComparisons * 92 / 100);
}

}  // namespace
}  // namespace reynard::report
