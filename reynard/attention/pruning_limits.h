#pragma once
// Sizes and margins that every device's search for prunable keys shares; apart from pruning.h
// because kernels include no torch header.

#include <cstdint>

namespace reynard::attention {

constexpr int64_t kQueryBlock = 128;  // queries that share one entry of start
constexpr int64_t kKeyBlock = 64;     // granularity of start, and the tiles that statistics count
// In nats: rounding of the f32 norms, logits, floors and masses that the tight rule compares.
constexpr double kFloorMargin = 0.01;
// Relative: rounding of an f32 norm of at most 256 squares.
constexpr float kNormMargin = 1 + 1e-5F;

}  // namespace reynard::attention
