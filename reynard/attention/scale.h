#pragma once
// The factor of q.k where none is given.

#include <cmath>
#include <cstdint>

namespace reynard::attention {

// 1/sqrt(head_dim) for a scale of 0 (AttentionOptions::scale).
inline double effective_scale(double scale, int64_t head_dim) {
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
}

}  // namespace reynard::attention
