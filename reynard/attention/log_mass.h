#pragma once
// Masses of attention weights as logarithms: what pruning and eviction have dropped, what a page
// holds.

#include "reynard/tensor/host_device.h"

#include <cmath>
#include <limits>

namespace reynard::attention {

inline constexpr double kNoMass = -std::numeric_limits<double>::infinity();

// log(exp(a) + exp(b)) in f64; kNoMass adds nothing, NaN gives NaN.
REYNARD_HOST_DEVICE inline double log_add_exp(double a, double b) {
  // A NaN becomes `low`, or `high` beside kNoMass.
  const double high = a > b ? a : b, low = a > b ? b : a;
  return low == kNoMass ? high : high + std::log1p(std::exp(low - high));
}

}  // namespace reynard::attention
