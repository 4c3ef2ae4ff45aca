#include "reynard/statistics/statistics.h"

#include "reynard/tensor/check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace reynard::statistics {
namespace {

TEST(Moments, PopulationAndSampleDeviation) {
  const std::vector<double> values{1, 2, 3, 4};
  const Moments m = moments(values);
  EXPECT_DOUBLE_EQ(m.mean, 2.5);
  EXPECT_DOUBLE_EQ(m.deviation, std::sqrt(1.25));
  EXPECT_DOUBLE_EQ(m.sample_deviation, std::sqrt(5.0 / 3));
}

TEST(PairedTTest, NoDifferenceIsCertainAndConstantDifferenceIsImpossible) {
  const std::vector<double> a{0.1, 0.5, 0.9};
  EXPECT_EQ(paired_t_test(a, a).p_value, 1);
  const std::vector<double> zero{0, 0, 0};
  const std::vector<double> one{1, 1, 1};
  EXPECT_EQ(paired_t_test(one, zero).p_value, 0);
}

// t = 2.262157 is the 97.5 % quantile with 9 degrees of freedom.
TEST(PairedTTest, HalfWidthIsTheQuantileTimesTheStandardError) {
  std::vector<double> a{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<double> b(10, 0);
  const double expected = 2.2621571627982055 * moments(a).sample_deviation / std::sqrt(10.0);
  EXPECT_NEAR(paired_half_width(a, b, 0.05), expected, 1e-9);
  EXPECT_NEAR(t_quantile(9, 0.05), 2.2621571627982055, 1e-14);
}

TEST(PairedTTest, SamplesMustPair) {
  const std::vector<double> two{1, 2};
  const std::vector<double> three{1, 2, 3};
  const std::vector<double> one{1};
  EXPECT_THROW(paired_t_test(two, three), Error);
  EXPECT_THROW(paired_t_test(one, one), Error);
}

// What scipy.stats.shapiro gives: 3, 4, 5 and more than 11 values go different ways. scipy rounds
// the normal quantiles to about 1e-8.
TEST(ShapiroWilk, EqualsScipyAtEverySampleSize) {
  struct Golden {
    std::vector<double> values;
    double w, p;
  };
  const std::vector<Golden> golden = {
      {{1, 2, 4}, 0.9642857142857142, 0.6368868450289689},
      {{1, 5, 2, 9}, 0.9281416901727945, 0.5835205808731088},
      {{0.1, 0.2, 0.3, 0.5, 4}, 0.634569736502697, 0.0017363770442923674},
      {{.1, .3, .35, .36, .9, 1.2, 1.21, 2, 2.5, 2.6, 3.1, 4.7, 9},
       0.7797065311318776,
       0.003952243805502613},
  };
  for (const Golden& g : golden) {
    SCOPED_TRACE(g.values.size());
    EXPECT_NEAR(shapiro_wilk(g.values).statistic, g.w, 1e-7);
    EXPECT_NEAR(shapiro_wilk(g.values).p_value, g.p, 1e-7);
  }
}

TEST(ShapiroWilk, ConstantSampleIsCalledNormal) {
  const std::vector<double> values(10, 0.25);
  EXPECT_EQ(shapiro_wilk(values).statistic, 1);
  EXPECT_EQ(shapiro_wilk(values).p_value, 1);
}

TEST(ShapiroWilk, NeedsThreeValues) {
  const std::vector<double> two{1, 2};
  EXPECT_THROW(shapiro_wilk(two), Error);
}

TEST(Levene, UnequalSizesEqualScipy) {
  const std::vector<double> a{1, 2, 3, 4, 9};
  const std::vector<double> b{2, 2.5, 3, 3.1};
  EXPECT_NEAR(levene(a, b).statistic, 1.796221119631133, 1e-12);
  EXPECT_NEAR(levene(a, b).p_value, 0.22203617024435, 1e-12);
  const std::vector<double> one{1};
  EXPECT_THROW(levene(a, one), Error);
}

TEST(Levene, NoSpreadAnywhereIsUndefined) {
  const std::vector<double> constant(10, 1);
  EXPECT_TRUE(std::isnan(levene(constant, constant).p_value));
}

TEST(GroupTests, EqualValuesAndSpreadlessGroups) {
  const std::vector<std::vector<double>> same(3, std::vector<double>(4, 0.5));
  EXPECT_TRUE(std::isnan(one_way_anova(same).p_value));
  EXPECT_TRUE(std::isnan(kruskal_wallis(same).p_value));
  const std::vector<std::vector<double>> apart{{1, 1}, {2, 2}};
  EXPECT_EQ(one_way_anova(apart).p_value, 0);
  EXPECT_THROW(one_way_anova(std::vector<std::vector<double>>{{1, 2}}), Error);
  EXPECT_THROW(kruskal_wallis(std::vector<std::vector<double>>{{1}, {}}), Error);
  EXPECT_THROW(one_way_anova(std::vector<std::vector<double>>{{1}, {2}}), Error);
}

TEST(Holm, StepsDownAndStaysMonotone) {
  const std::vector<double> p{0.04, 0.01, 0.03, 0.9};
  const std::vector<double> adjusted = holm_adjusted(p);
  EXPECT_DOUBLE_EQ(adjusted[1], 0.04);
  EXPECT_DOUBLE_EQ(adjusted[2], 0.09);
  EXPECT_DOUBLE_EQ(adjusted[0], 0.09);
  EXPECT_DOUBLE_EQ(adjusted[3], 0.9);
  EXPECT_EQ(holm_adjusted(std::vector<double>{0.6, 0.8}), (std::vector<double>{1, 1}));
}

TEST(SignTest, IsThatOfFairCoins) {
  EXPECT_EQ(sign_test(0, 0), 1);
  EXPECT_EQ(sign_test(3, 3), 1);
  EXPECT_DOUBLE_EQ(sign_test(6, 0), 0.03125);
  EXPECT_DOUBLE_EQ(sign_test(1, 9), 2 * 11 / 1024.0);
  EXPECT_NEAR(sign_test(249, 0) / std::exp2(-248), 1, 1e-12);
}

// 12 and 1 of 44: where the score of the likelihood, maximised over a grid, passes z. Without signs
// and with all of them alike the bounds have closed forms.
TEST(PairedShareInterval, IsTangos) {
  const Interval mixed = paired_share_interval(12, 1, 44, 0.05);
  EXPECT_NEAR(mixed.low, 0.106755, 1e-6);
  EXPECT_NEAR(mixed.high, 0.402292, 1e-6);
  const double z = 1.959963984540054;
  const Interval none = paired_share_interval(0, 0, 44, 0.05);
  EXPECT_NEAR(none.high, z * z / (44 + z * z), 1e-9);
  EXPECT_NEAR(none.low, -none.high, 1e-9);
  const Interval all = paired_share_interval(44, 0, 44, 0.05);
  EXPECT_EQ(all.high, 1);
  EXPECT_NEAR(all.low, (44 - z * z) / (44 + z * z), 1e-9);
  const Interval turned = paired_share_interval(1, 12, 44, 0.05);
  EXPECT_NEAR(turned.low, -mixed.high, 1e-9);
  EXPECT_NEAR(turned.high, -mixed.low, 1e-9);
  EXPECT_THROW(paired_share_interval(2, 1, 2, 0.05), Error);
  EXPECT_THROW(paired_share_interval(0, 0, 0, 0.05), Error);
}

}  // namespace
}  // namespace reynard::statistics
