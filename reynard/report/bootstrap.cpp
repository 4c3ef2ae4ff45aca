#include "reynard/report/bootstrap.h"

#include "reynard/statistics/statistics.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace reynard::report {

namespace {

constexpr double kIntervalLevel = 0.05;
constexpr double kRounding = 1e-12;  // of numbers that are alike

struct MeanAndError {
  double mean = 0, error = 0;
};
MeanAndError mean_and_error(std::span<const double> values) {
  const statistics::Moments of = statistics::moments(values);
  return {of.mean, of.sample_deviation / std::sqrt(static_cast<double>(values.size()))};
}

// How often each of the values occurs, those that differ by rounding counted as one.
std::vector<int64_t> counts_of(std::span<const double> values, double rounding) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  std::vector<int64_t> counts{1};
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i] - sorted[i - 1] > rounding) counts.push_back(0);
    ++counts.back();
  }
  return counts;
}

// The chance that a resample has no spread, sum over distinct values of (count / n)^n.
double chance_of_no_spread(const std::vector<int64_t>& counts, size_t n) {
  double chance = 0;
  const auto size = static_cast<double>(n);
  for (const int64_t count : counts) chance += std::pow(static_cast<double>(count) / size, size);
  return chance;
}

Bootstrap without_interval(double mean, double p_value, std::string reason) {
  return {mean, std::nan(""), std::nan(""), p_value, std::move(reason)};
}

// Of differences many of which are alike.
Bootstrap by_signs(std::span<const double> differences, double mean, double size, double largest) {
  const double rounding = kRounding * size;
  int64_t positive = 0;
  int64_t negative = 0;
  bool are_whole = true;  // each is 0 or `largest`: answers that are right or wrong
  for (const double x : differences) {
    positive += x > rounding ? 1 : 0;
    negative += x < -rounding ? 1 : 0;
    are_whole =
        are_whole && (std::abs(x) <= rounding || std::abs(largest - std::abs(x)) <= rounding);
  }
  const bool agree = (positive - negative) * mean >= 0;
  const double p_value = agree ? statistics::sign_test(positive, negative) : 1;
  const auto n = static_cast<int64_t>(differences.size());
  if (!are_whole) {
    return without_interval(mean, p_value, fmt::format("many of the {} differences are alike", n));
  }
  const statistics::Interval interval =
      statistics::paired_share_interval(positive, negative, n, kIntervalLevel);
  return {mean, largest * interval.low, largest * interval.high, p_value, ""};
}

}  // namespace

Bootstrap bootstrap_mean(std::span<const double> differences, const BootstrapOptions& options) {
  tensor::check_value(differences.size() >= 2,
                      "bootstrap",
                      "number of differences",
                      static_cast<int64_t>(differences.size()),
                      "at least 2");
  const MeanAndError whole = mean_and_error(differences);
  double size = 0;  // of the largest
  for (const double x : differences) size = std::max(size, std::abs(x));
  const size_t n = differences.size();
  const std::vector<int64_t> counts = counts_of(differences, kRounding * size);
  if (counts.size() == 1) {
    const auto signs = static_cast<int64_t>(size == 0 ? 0 : n);
    return without_interval(whole.mean,
                            statistics::sign_test(signs, 0),
                            fmt::format("all {} differences are alike", n));
  }
  const auto resamples = static_cast<double>(options.resamples);
  // One resample without spread already bounds p from below.
  if (counts.size() < n && chance_of_no_spread(counts, n) * (resamples + 1) >= 1) {
    return by_signs(differences, whole.mean, size, options.largest);
  }
  std::mt19937_64 random(options.seed);
  std::vector<double> resample(n);
  std::vector<double> sizes;  // of the studentised deviations
  for (int64_t b = 0; b < options.resamples; ++b) {
    for (double& x : resample) x = differences[random() % n];
    const MeanAndError drawn = mean_and_error(resample);
    const double deviation = std::abs(drawn.mean - whole.mean);
    // A resample of equal values says nothing of the spread; it counts as the largest deviation.
    sizes.push_back(drawn.error > kRounding * size ? deviation / drawn.error
                                                   : std::numeric_limits<double>::infinity());
  }
  std::sort(sizes.begin(), sizes.end());
  const double t = std::abs(whole.mean) / whole.error;
  const auto larger = sizes.end() - std::lower_bound(sizes.begin(), sizes.end(), t);
  const double p_value = (static_cast<double>(larger) + 1) / (resamples + 1);
  // The interval leaves 0 out exactly where p < 0.05.
  const auto rank =
      static_cast<size_t>(resamples + 1 - std::floor(kIntervalLevel * (resamples + 1)));
  const double width = sizes[std::min(rank, sizes.size() - 1)] * whole.error;
  if (std::isinf(width)) {
    return without_interval(whole.mean, p_value, fmt::format("{} differences are too few", n));
  }
  return {whole.mean,
          std::max(whole.mean - width, -options.largest),
          std::min(whole.mean + width, options.largest),
          p_value,
          ""};
}

}  // namespace reynard::report
