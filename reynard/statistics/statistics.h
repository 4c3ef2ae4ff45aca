#pragma once
// The statistics that go with a measured mean: paired t-test, normality, equal variances, tests
// over several groups, and a correction for many comparisons. Definitions are those of scipy, whose
// numbers published results carry (docs/evaluation.md).

#include <cstdint>
#include <span>
#include <vector>

namespace reynard::statistics {

// Mean and spread of a sample.
struct Moments {
  double mean = 0;
  double deviation = 0;         // population standard deviation (divides by n)
  double sample_deviation = 0;  // sample standard deviation (divides by n - 1); 0 for one value
};
Moments moments(std::span<const double> values);
// Of their mean: sample_deviation / sqrt(n); NaN below two values, which say nothing of it.
double standard_error(std::span<const double> values);

struct TestResult {
  double statistic = 0;
  double p_value = 1;
};

// Two-sided paired t-test of mean(a - b) = 0. No difference at all gives p = 1; a difference
// without any spread gives p = 0. Throws reynard::Error unless both have the same size >= 2.
TestResult paired_t_test(std::span<const double> a, std::span<const double> b);

// Two-sided p of the exact sign test: that of so many or fewer of the rarer sign, were both as
// likely. 1 without any sign. Of answers that are right or wrong this is McNemar's exact test.
double sign_test(int64_t positive, int64_t negative);

struct Interval {
  double low = 0, high = 0;
};
// Two-sided confidence interval of the mean of paired differences, each 1, -1 or 0: Tango's score
// interval (1998), which stays within [-1, 1] and needs no spread. Throws reynard::Error for fewer
// than one of `count`, or more signs than that.
Interval paired_share_interval(int64_t positive, int64_t negative, int64_t count, double level);

// What |t| of Student's t exceeds with the probability `level`; freedom at least 1.
double t_quantile(int64_t freedom, double level);

// What the standard error of the mean of `count` values is multiplied with for its two-sided
// confidence interval (Student's t; level 0.05: 95 %); NaN below two values.
double interval_factor(int64_t count, double level);

// Half width of the confidence interval of mean(a - b) at the given two-sided level (0.05: 95 %).
double paired_half_width(std::span<const double> a, std::span<const double> b, double level);

// Shapiro-Wilk W of normality after Royston 1995 (AS R94), 3 <= n <= 5000. A constant sample gives
// W = 1, p = 1.
TestResult shapiro_wilk(std::span<const double> values);

// Levene's test of equal variances around the medians (Brown-Forsythe) for two samples; p is NaN
// when neither spreads.
TestResult levene(std::span<const double> a, std::span<const double> b);

using Groups = std::span<const std::vector<double>>;

// One-way analysis of variance: do all groups have the same mean? Equal values throughout give p =
// NaN; groups that differ without any spread inside give p = 0. Throws reynard::Error for fewer
// than two groups, an empty one, or as many groups as values.
TestResult one_way_anova(Groups groups);

// Kruskal-Wallis H with mid-ranks and the correction for ties: do all groups have the same
// distribution? p from the chi-squared distribution; equal values throughout give p = NaN. Throws
// as above.
TestResult kruskal_wallis(Groups groups);

// Holm's correction: p-values that keep the chance of any false alarm below the level that they are
// compared with. Order is that of the input.
std::vector<double> holm_adjusted(std::span<const double> p_values);

}  // namespace reynard::statistics
