#pragma once
// How long a text may be that a setting asks for, and how many samples. No text is longer, and sums
// and products of a length and a count, or of three counts, stay far from what int64_t holds.

#include "reynard/config/fields.h"

#include <cstdint>

namespace reynard::evaluation {

inline constexpr int64_t kMaxLength = int64_t{1} << 40;  // tokens
inline constexpr config::Rule kLength{1, kMaxLength, false, "between 1 and 2^40"};
inline constexpr config::Rule kLengthOrZero{0, kMaxLength, false, "between 0 and 2^40"};
inline constexpr int64_t kMaxCount = int64_t{1} << 20;
inline constexpr config::Rule kCount{1, kMaxCount, false, "between 1 and 2^20"};

}  // namespace reynard::evaluation
