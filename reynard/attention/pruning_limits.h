#pragma once
// Sizes, margins and decisions that every device's search for prunable keys shares; apart from
// pruning.h because kernels include no torch header.

#include "reynard/tensor/host_device.h"

#include <cstdint>

namespace reynard::attention {

constexpr int64_t kQueryBlock = 128;  // queries that share one entry of start
constexpr int64_t kKeyBlock = 64;     // granularity of start, and the tiles that statistics count
// In nats: rounding of the f32 norms, logits, floors and masses that the tight rule compares.
constexpr double kFloorMargin = 0.01;
// Relative: rounding of an f32 norm of at most 256 squares.
constexpr float kNormMargin = 1 + 1e-5F;

// Whether the tight rule leaves a head alone: its gates take less than the tolerance over all keys.
//   fading: c of the last query minus c of the first key, <= 0 but for rounding; NaN is searched
REYNARD_HOST_DEVICE constexpr bool keeps_all_keys(double fading, double log_tolerance) {
  return fading > log_tolerance;
}

}  // namespace reynard::attention
