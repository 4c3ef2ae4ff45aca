#pragma once
// The mean of paired differences: its interval and whether it is more than chance.

#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace reynard::report {

struct BootstrapOptions {
  int64_t resamples = 9999;
  uint64_t seed = 0;
  // The largest mean difference there can be: scores lie on a scale. No interval leaves it.
  double largest = std::numeric_limits<double>::infinity();
};

// Of the mean of paired differences.
struct Bootstrap {
  double mean = 0;
  double low = 0, high = 0;  // 95 % interval; NaN: none
  double p_value = 1;        // two-sided, of mean = 0
  std::string no_interval;  // why there is none: "all 8 differences are alike"; empty: there is one
};
// Studentised bootstrap: the distribution of (mean* - mean) / error* over resamples stands for that
// of mean / error. It holds its level with few samples, where the plain percentile interval is too
// narrow. A resample whose values are alike has no error*. Where several differences are alike and
// such a resample is to be expected (one odd answer of 250 leaves 37 % of resamples without
// spread), p is that of the exact sign test, or 1 where most signs contradict the mean. The
// interval is then Tango's if all that are not 0 are `largest`; there is none otherwise, nor where
// all differences are alike but for rounding. Throws reynard::Error for fewer than 2 differences.
Bootstrap bootstrap_mean(std::span<const double> differences, const BootstrapOptions& options = {});

}  // namespace reynard::report
