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
  // That a mean difference can be: scores lie on a scale. No interval leaves it.
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
// such a resample is to be expected, p is that of the exact sign test (1 where most signs
// contradict the mean), and the interval is Tango's where all that are not 0 are `largest`, else
// none: a single odd answer of 250 leaves 37 % of resamples without spread. So it is where all are
// alike but for rounding, without any interval. Throws reynard::Error for fewer than 2 differences.
Bootstrap bootstrap_mean(std::span<const double> differences, const BootstrapOptions& options = {});

}  // namespace reynard::report
