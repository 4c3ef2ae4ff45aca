#pragma once
// The median of measured numbers.

#include <algorithm>
#include <cmath>
#include <vector>

namespace reynard::statistics {

// Of an even count the mean of both middles; NaN of none.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::nan("");
  std::ranges::sort(values);
  const size_t size = values.size();
  return (values[(size - 1) / 2] + values[size / 2]) / 2;
}

}  // namespace reynard::statistics
