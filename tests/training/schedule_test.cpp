#include "reynard/training/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace reynard::training {

namespace {

double rate_at(const ScheduleConfig& schedule, int64_t tokens, int64_t budget = 1000) {
  return learning_rate(schedule, 1.0, {.tokens = tokens, .token_budget = budget});
}

}  // namespace

TEST(Schedule, RisesFromZeroOverTheWarmUp) {
  const ScheduleConfig in_tokens{.shape = ScheduleShape::kConstant, .warmup_tokens = 200};
  EXPECT_EQ(rate_at(in_tokens, 0), 0);  // the published recipe: the first step has rate 0
  EXPECT_DOUBLE_EQ(rate_at(in_tokens, 50), 0.25);
  EXPECT_DOUBLE_EQ(rate_at(in_tokens, 200), 1);
  EXPECT_DOUBLE_EQ(rate_at(in_tokens, 1000), 1);
  const ScheduleConfig share{.shape = ScheduleShape::kConstant, .warmup_fraction = 0.2};
  for (const int64_t tokens : {0, 50, 199, 200, 700}) {
    EXPECT_DOUBLE_EQ(rate_at(share, tokens), rate_at(in_tokens, tokens));
  }
}

TEST(Schedule, ShapesFallFromThePeakToTheFinalRate) {
  const auto with = [](ScheduleShape shape) {
    return ScheduleConfig{.shape = shape, .warmup_tokens = 200, .final_fraction = 0.1};
  };
  for (const ScheduleShape shape : {ScheduleShape::kLinear,
                                    ScheduleShape::kCosine,
                                    ScheduleShape::kOneMinusSqrt,
                                    ScheduleShape::kWSD}) {
    EXPECT_DOUBLE_EQ(rate_at(with(shape), 200), 1);
    EXPECT_DOUBLE_EQ(rate_at(with(shape), 1000), 0.1);
    EXPECT_DOUBLE_EQ(rate_at(with(shape), 5000), 0.1);  // past the budget
    double before = 1;
    for (int64_t tokens = 200; tokens <= 1000; tokens += 10) {
      EXPECT_LE(rate_at(with(shape), tokens), before);
      before = rate_at(with(shape), tokens);
    }
  }
  // A quarter of the way down, by hand.
  EXPECT_NEAR(rate_at(with(ScheduleShape::kLinear), 400), 0.1 + 0.9 * 0.75, 1e-12);
  EXPECT_NEAR(rate_at(with(ScheduleShape::kCosine), 400),
              0.1 + 0.9 * 0.5 * (1 + std::cos(std::acos(-1.0) / 4)),
              1e-12);
  EXPECT_NEAR(rate_at(with(ScheduleShape::kOneMinusSqrt), 400), 0.1 + 0.9 * 0.5, 1e-12);
}

TEST(Schedule, InverseSqrtFallsFromTheEndOfTheWarmUp) {
  const ScheduleConfig schedule{
      .shape = ScheduleShape::kInverseSqrt, .warmup_tokens = 100, .final_fraction = 0.25};
  const auto rate = [&](int64_t tokens) {
    return learning_rate(schedule, 2, {.tokens = tokens, .token_budget = 10000});
  };
  EXPECT_NEAR(rate(50), 1, 1e-9);
  EXPECT_NEAR(rate(100), 2, 1e-9);
  EXPECT_NEAR(rate(400), 1, 1e-9);
  EXPECT_NEAR(rate(900), 2.0 / 3, 1e-9);
  EXPECT_NEAR(rate(5000), 0.5, 1e-9);  // not below the final rate
}

TEST(Schedule, WsdIsStableUntilTheLastShare) {
  const ScheduleConfig wsd{
      .shape = ScheduleShape::kWSD, .warmup_tokens = 100, .decay_fraction = 0.4};
  EXPECT_DOUBLE_EQ(rate_at(wsd, 100), 1);
  EXPECT_DOUBLE_EQ(rate_at(wsd, 600), 1);
  EXPECT_NEAR(rate_at(wsd, 700), 1 - std::sqrt(0.25), 1e-12);
  EXPECT_NEAR(rate_at(wsd, 1000), 0, 1e-12);
  const ScheduleConfig never_falls{
      .shape = ScheduleShape::kWSD, .warmup_tokens = 100, .decay_fraction = 0};
  EXPECT_EQ(rate_at(never_falls, 999), 1);
  EXPECT_EQ(rate_at(never_falls, 1000), 1);
}

TEST(Schedule, TimeBudgetFollowsTheClock) {
  const ScheduleConfig linear{.shape = ScheduleShape::kLinear, .warmup_fraction = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(linear, 2.0, {.tokens = 5, .seconds = 55, .second_budget = 100}),
                   1.0);
  EXPECT_DOUBLE_EQ(learning_rate(linear, 2.0, {.tokens = 5, .seconds = 130, .second_budget = 100}),
                   0.0);
  // With both budgets the one that is further decides.
  const Progress both{.tokens = 550, .token_budget = 1000, .seconds = 10, .second_budget = 100};
  EXPECT_DOUBLE_EQ(both.fraction(), 0.55);
}

TEST(Schedule, OnlyABudgetOfTimeRunsOutOfIt) {
  const Progress timed{.tokens = 5, .seconds = 70, .second_budget = 100};
  EXPECT_TRUE(timed.has_time_for(29));
  EXPECT_FALSE(timed.has_time_for(31));
  const Progress counted{.tokens = 5, .token_budget = 1000, .seconds = 70};
  EXPECT_TRUE(counted.has_time_for(1e9));
}

}  // namespace reynard::training
