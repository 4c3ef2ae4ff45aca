#pragma once
// How long a text may be that a setting asks for. No text is longer, and sums and small multiples
// of lengths stay far from what int64_t holds.

#include "reynard/config/fields.h"

#include <cstdint>

namespace reynard::evaluation {

inline constexpr int64_t kMaxLength = int64_t{1} << 40;  // tokens
inline constexpr config::Rule kLength{1, kMaxLength, false, "between 1 and 2^40"};
inline constexpr config::Rule kLengthOrZero{0, kMaxLength, false, "between 0 and 2^40"};

}  // namespace reynard::evaluation
