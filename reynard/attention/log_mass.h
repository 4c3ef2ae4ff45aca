#pragma once
// Masses of attention weights as logarithms: what pruning and eviction have dropped, what a page
// holds.

#include <algorithm>
#include <cmath>
#include <limits>

namespace reynard::attention {

inline constexpr double kNoMass = -std::numeric_limits<double>::infinity();

// log(exp(a) + exp(b)) in f64; kNoMass adds nothing, NaN gives NaN.
inline double log_add_exp(double a, double b) {
  if (std::isnan(b)) return b;  // std::max and std::min would lose it, though not a NaN in front
  const double high = std::max(a, b), low = std::min(a, b);
  return low == kNoMass ? high : high + std::log1p(std::exp(low - high));
}

}  // namespace reynard::attention
