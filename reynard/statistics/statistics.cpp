#include "reynard/statistics/statistics.h"

#include "reynard/statistics/median.h"
#include "reynard/tensor/check.h"

#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/chi_squared.hpp>
#include <boost/math/distributions/fisher_f.hpp>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>

namespace reynard::statistics {

namespace {

using tensor::check_value;

std::vector<double> differences(std::span<const double> a, std::span<const double> b) {
  check_value(a.size() == b.size(),
              "paired_t_test",
              "number of values",
              static_cast<int64_t>(b.size()),
              "as many in both samples");
  check_value(a.size() >= 2,
              "paired_t_test",
              "number of values",
              static_cast<int64_t>(a.size()),
              "at least 2");
  std::vector<double> difference(a.size());
  std::transform(a.begin(), a.end(), b.begin(), difference.begin(), std::minus<>());
  return difference;
}

// sum_i c_i x^i
template <size_t N>
double polynomial(const std::array<double, N>& c, double x) {
  double value = 0;
  for (size_t i = N; i-- > 0;) value = value * x + c[i];
  return value;
}

double upper_tail(const auto& distribution, double x) {
  return cdf(complement(distribution, x));
}

double normal_upper_tail(double z) {
  return 0.5 * std::erfc(z / std::numbers::sqrt2);
}

// The weights of the lower half of the order statistics (Royston's approximation), all positive.
std::vector<double> shapiro_weights(size_t n) {
  if (n == 3) return {std::numbers::sqrt2 / 2};
  std::vector<double> m(n / 2);
  double sum_of_squares = 0;
  for (size_t i = 0; i < m.size(); ++i) {
    const double rank = static_cast<double>(i) + 1;
    m[i] = quantile(boost::math::normal(), (rank - 0.375) / (static_cast<double>(n) + 0.25));
    sum_of_squares += 2 * m[i] * m[i];
  }
  const double norm = std::sqrt(sum_of_squares);
  const double u = 1 / std::sqrt(static_cast<double>(n));
  std::vector<double> a(n / 2);
  a[0] = polynomial<6>({0, 0.221157, -0.147981, -2.07119, 4.434685, -2.706056}, u) - m[0] / norm;
  double rest = sum_of_squares - 2 * m[0] * m[0];
  double left = 1 - 2 * a[0] * a[0];
  size_t first = 1;
  if (n > 5) {
    a[1] = polynomial<6>({0, 0.042981, -0.293762, -1.752461, 5.682633, -3.582633}, u) - m[1] / norm;
    rest -= 2 * m[1] * m[1];
    left -= 2 * a[1] * a[1];
    first = 2;
  }
  const double factor = std::sqrt(rest / left);
  for (size_t i = first; i < a.size(); ++i) a[i] = -m[i] / factor;
  return a;
}

// p-value of 1 - W by Royston's normalising transformations.
double shapiro_p_value(double w, double one_minus_w, size_t size) {
  const auto n = static_cast<double>(size);
  if (size == 3) {
    const double p = 6 / std::numbers::pi * (std::asin(std::sqrt(w)) - std::asin(std::sqrt(0.75)));
    return std::clamp(p, 0.0, 1.0);
  }
  double y = std::log(one_minus_w);
  double mean = 0;
  double deviation = 1;
  if (size <= 11) {
    const double gamma = polynomial<2>({-2.273, 0.459}, n);
    if (y >= gamma) return 0;
    y = -std::log(gamma - y);
    mean = polynomial<4>({0.544, -0.39978, 0.025054, -6.714e-4}, n);
    deviation = std::exp(polynomial<4>({1.3822, -0.77857, 0.062767, -0.0020322}, n));
  } else {
    const double log_n = std::log(n);
    mean = polynomial<4>({-1.5861, -0.31082, -0.083751, 0.0038915}, log_n);
    deviation = std::exp(polynomial<3>({-0.4803, -0.082676, 0.0030302}, log_n));
  }
  return normal_upper_tail((y - mean) / deviation);
}

// The values of all groups, one after the other.
std::vector<double> all_values(Groups groups, const char* test) {
  check_value(groups.size() >= 2,
              test,
              "number of groups",
              static_cast<int64_t>(groups.size()),
              "at least 2");
  std::vector<double> values;
  for (const std::vector<double>& group : groups) {
    check_value(!group.empty(), test, "number of values of a group", int64_t{0}, "at least 1");
    values.insert(values.end(), group.begin(), group.end());
  }
  check_value(values.size() > groups.size(),
              test,
              "number of values",
              static_cast<int64_t>(values.size()),
              "more than groups");
  return values;
}

// Ranks from 1, equal values sharing the mean of theirs, and the sum of t^3 - t over the ties.
struct Ranks {
  std::vector<double> of;
  double ties = 0;
};
Ranks mid_ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t i, size_t j) { return values[i] < values[j]; });
  Ranks ranks{std::vector<double>(values.size()), 0};
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double rank = static_cast<double>(begin + end + 1) / 2;
    for (size_t i = begin; i < end; ++i) ranks.of[order[i]] = rank;
    const auto tied = static_cast<double>(end - begin);
    ranks.ties += tied * tied * tied - tied;
    begin = end;
  }
  return ranks;
}

}  // namespace

Moments moments(std::span<const double> values) {
  if (values.empty()) return {};
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double x : values) squares += (x - mean) * (x - mean);
  return {mean, std::sqrt(squares / n), n > 1 ? std::sqrt(squares / (n - 1)) : 0};
}

double standard_error(std::span<const double> values) {
  if (values.size() < 2) return std::nan("");
  return moments(values).sample_deviation / std::sqrt(static_cast<double>(values.size()));
}

TestResult paired_t_test(std::span<const double> a, std::span<const double> b) {
  const Moments d = moments(differences(a, b));
  const auto n = static_cast<double>(a.size());
  if (d.mean == 0 && d.sample_deviation == 0) return {0, 1};
  const double t = d.mean / (d.sample_deviation / std::sqrt(n));
  if (!std::isfinite(t)) return {t, 0};
  return {t, 2 * upper_tail(boost::math::students_t(n - 1), std::abs(t))};
}

double sign_test(int64_t positive, int64_t negative) {
  const auto signs = static_cast<double>(positive + negative);
  if (signs == 0) return 1;
  const boost::math::binomial fair(signs, 0.5);
  return std::min(1.0, 2 * cdf(fair, static_cast<double>(std::min(positive, negative))));
}

namespace {

// The score statistic of the mean difference being `mean` (Tango 1998, equations 3 and 4), where
// the share of negative ones is the most likely under it.
double score_of_mean(double positive, double negative, double count, double mean) {
  const double b = (2 * count - positive + negative) * mean - positive - negative;
  const double c = -negative * mean * (1 - mean);
  const double share = (std::sqrt(std::max(0.0, b * b - 8 * count * c)) - b) / (4 * count);
  const double variance = count * (2 * share + mean * (1 - mean));
  const double deviation = positive - negative - count * mean;
  if (variance > 0) return deviation / std::sqrt(variance);
  return deviation == 0 ? 0 : std::copysign(std::numeric_limits<double>::infinity(), deviation);
}

}  // namespace

Interval paired_share_interval(int64_t positive, int64_t negative, int64_t count, double level) {
  check_value(count >= 1, "paired_share_interval", "count", count, ">= 1");
  check_value(positive >= 0 && negative >= 0 && positive + negative <= count,
              "paired_share_interval",
              "number of signs",
              positive + negative,
              "0 to count");
  const double z = quantile(complement(boost::math::normal(), level / 2));
  const double mean = static_cast<double>(positive - negative) / static_cast<double>(count);
  // The score falls as the mean rises: the bound towards `end` is where it passes z.
  const auto bound = [&](double end) {
    double inside = mean;
    double outside = end;
    for (int step = 0; step < 60; ++step) {  // to the last digit
      const double middle = (inside + outside) / 2;
      const double score = score_of_mean(static_cast<double>(positive),
                                         static_cast<double>(negative),
                                         static_cast<double>(count),
                                         middle);
      (std::abs(score) < z ? inside : outside) = middle;
    }
    return inside;
  };
  return {bound(-1), bound(1)};
}

double t_quantile(int64_t freedom, double level) {
  const boost::math::students_t t(static_cast<double>(freedom));
  return quantile(complement(t, level / 2));
}

double interval_factor(int64_t count, double level) {
  return count < 2 ? std::nan("") : t_quantile(count - 1, level);
}

double paired_half_width(std::span<const double> a, std::span<const double> b, double level) {
  const Moments d = moments(differences(a, b));
  const auto n = static_cast<int64_t>(a.size());
  return interval_factor(n, level) * d.sample_deviation / std::sqrt(static_cast<double>(n));
}

TestResult shapiro_wilk(std::span<const double> values) {
  check_value(values.size() >= 3 && values.size() <= 5000,
              "shapiro_wilk",
              "number of values",
              static_cast<int64_t>(values.size()),
              "3 to 5000");
  std::vector<double> x(values.begin(), values.end());
  std::sort(x.begin(), x.end());
  const size_t n = x.size();
  const double range = x.back() - x.front();
  if (range < 1e-19) return {1, 1};

  const std::vector<double> lower = shapiro_weights(n);
  std::vector<double> a(n, 0);
  for (size_t i = 0; i < n / 2; ++i) {
    a[i] = -lower[i];
    a[n - 1 - i] = lower[i];
  }
  const double mean = moments(x).mean;
  double aa = 0;
  double xx = 0;
  double ax = 0;
  for (size_t i = 0; i < n; ++i) {
    const double centred = (x[i] - mean) / range;
    aa += a[i] * a[i];
    xx += centred * centred;
    ax += a[i] * centred;
  }
  // 1 - W without cancellation when W is close to 1.
  const double norm = std::sqrt(aa * xx);
  const double one_minus_w = (norm - ax) * (norm + ax) / (aa * xx);
  return {1 - one_minus_w, shapiro_p_value(1 - one_minus_w, one_minus_w, n)};
}

TestResult levene(std::span<const double> a, std::span<const double> b) {
  check_value(a.size() >= 2 && b.size() >= 2,
              "levene",
              "number of values",
              static_cast<int64_t>(std::min(a.size(), b.size())),
              "at least 2");
  std::array<std::vector<double>, 2> distances;
  const std::array<std::span<const double>, 2> samples{a, b};
  for (size_t g = 0; g < 2; ++g) {
    const double centre = median({samples[g].begin(), samples[g].end()});
    for (const double x : samples[g]) distances[g].push_back(std::abs(x - centre));
  }
  const auto total = static_cast<double>(a.size() + b.size());
  const std::array<double, 2> means{moments(distances[0]).mean, moments(distances[1]).mean};
  const double grand =
      (means[0] * static_cast<double>(a.size()) + means[1] * static_cast<double>(b.size())) / total;
  double between = 0;
  double within = 0;
  for (size_t g = 0; g < 2; ++g) {
    const double offset = means[g] - grand;
    between += static_cast<double>(distances[g].size()) * offset * offset;
    for (const double z : distances[g]) within += (z - means[g]) * (z - means[g]);
  }
  if (within == 0) {
    if (between > 0) return {std::numeric_limits<double>::infinity(), 0};
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan};
  }
  const double freedom = total - 2;
  const double f = freedom * between / within;
  return {f, upper_tail(boost::math::fisher_f(1, freedom), f)};
}

TestResult one_way_anova(Groups groups) {
  const std::vector<double> values = all_values(groups, "one_way_anova");
  const double grand = moments(values).mean;
  double between = 0;
  double within = 0;
  for (const std::vector<double>& group : groups) {
    const double mean = moments(group).mean;
    between += static_cast<double>(group.size()) * (mean - grand) * (mean - grand);
    for (const double x : group) within += (x - mean) * (x - mean);
  }
  if (within == 0) {
    if (between > 0) return {std::numeric_limits<double>::infinity(), 0};
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan};
  }
  const auto between_freedom = static_cast<double>(groups.size() - 1);
  const auto within_freedom = static_cast<double>(values.size() - groups.size());
  const double f = (between / between_freedom) / (within / within_freedom);
  return {f, upper_tail(boost::math::fisher_f(between_freedom, within_freedom), f)};
}

TestResult kruskal_wallis(Groups groups) {
  const std::vector<double> values = all_values(groups, "kruskal_wallis");
  const Ranks ranks = mid_ranks(values);
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  size_t next = 0;
  for (const std::vector<double>& group : groups) {
    double rank_sum = 0;
    for (size_t i = 0; i < group.size(); ++i) rank_sum += ranks.of[next++];
    sum += rank_sum * rank_sum / static_cast<double>(group.size());
  }
  const double untied = 1 - ranks.ties / (n * n * n - n);
  if (untied <= 0) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan};
  }
  const double h = (12 / (n * (n + 1)) * sum - 3 * (n + 1)) / untied;
  const auto freedom = static_cast<double>(groups.size() - 1);
  return {h, upper_tail(boost::math::chi_squared(freedom), std::max(0.0, h))};
}

std::vector<double> holm_adjusted(std::span<const double> p_values) {
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(
      order.begin(), order.end(), [&](size_t i, size_t j) { return p_values[i] < p_values[j]; });
  std::vector<double> adjusted(p_values.size());
  double largest = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const auto left = static_cast<double>(order.size() - rank);
    largest = std::max(largest, std::min(1.0, left * p_values[order[rank]]));
    adjusted[order[rank]] = largest;
  }
  return adjusted;
}

}  // namespace reynard::statistics
