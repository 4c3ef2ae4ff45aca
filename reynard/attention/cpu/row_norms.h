#pragma once
// Norms of rows, as many at once as a vector has lanes.

#include "reynard/attention/cpu/kernels.h"
#include "reynard/attention/cpu/pack.h"
#include "reynard/attention/cpu/vector.h"

#include <cstdint>

namespace reynard::attention::cpu {
namespace {

// kLanes values as f32.
inline Vec widened(const float* x) {
  return load_unaligned<Vec>(x);
}
inline Vec widened(const BFloat16* x) {
  typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
  typedef uint16_t HalfWords __attribute__((vector_size(kLanes * 2)));
  return (Vec)(__builtin_convertvector(load_unaligned<HalfWords>(x), Words) << 16);
}
inline Vec widened(const Half* x) {
  Vec values;
  for (int i = 0; i < kLanes; ++i) values[i] = to_float(x[i]);
  return values;
}

// The lanes add up to the squared norm of a row.
template <class Source>
Vec partial_squares(const Source* row, int64_t D) {
  Vec sums = {};
  int64_t d = 0;
  for (; d + kLanes <= D; d += kLanes) {
    const Vec values = widened(row + d);
    sums += values * values;
  }
  for (; d < D; ++d) sums[0] += to_float(row[d]) * to_float(row[d]);
  return sums;
}

// As KernelTable::largest_squares. All heads of some rows together: they lie side by side.
inline void largest_squares(const Rows& rows, float* largest) {
  for (int64_t h = 0; h < rows.num_heads; ++h) largest[h] = 0;
  with_rows(rows.x, rows.b, 0, rows.first_head, [&](const auto* from) {
    for (int64_t first = rows.begin; first < rows.end; first += kLanes) {
      for (int64_t h = 0; h < rows.num_heads; ++h) {
        Vec sums[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          const int64_t row = min_of(first + i, rows.end - 1);
          sums[i] = partial_squares(from + row * rows.x.time + h * rows.x.head, rows.D);
        }
        const Vec squares = sums_of_lanes(sums);
        for (int i = 0; i < kLanes; ++i) {
          if (squares[i] > largest[h] || squares[i] != squares[i]) largest[h] = squares[i];
        }
      }
    }
  });
}

}  // namespace
}  // namespace reynard::attention::cpu
