// The loops of a scan on vectors as wide as the instruction set that includes this file. Everything
// is in an unnamed namespace: each instruction set has its own copy.

#include "reynard/knn/cpu/scan_kernels.h"
#include "reynard/knn/cpu/vectors.inl"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

namespace reynard::knn::cpu {
namespace {

// The largest |k_d| seen, in each lane. Without their sign the bits of floats are ordered as the
// numbers are, NaN above all.
template <bool bf16>
struct Largest {
  using Integer = std::conditional_t<bf16, int16_t, int32_t>;
  typedef Integer Integers __attribute__((vector_size(kLanes * 4)));

  void add(const void* keys) {
    const Integers bits = load<Integers>(keys) & std::numeric_limits<Integer>::max();
    lanes = bits > lanes ? bits : lanes;
  }
  // As the bits of an f32.
  uint32_t result() const {
    Integer most = 0;
    for (size_t i = 0; i < sizeof(Integers) / sizeof(Integer); ++i) most = std::max(most, lanes[i]);
    return static_cast<uint32_t>(most) << (32 - 8 * sizeof(Integer));
  }

  Integers lanes = {};
};

template <bool bf16>
uint32_t largest(const KeyBlock& block) {
  using Integer = typename Largest<bf16>::Integer;
  constexpr int64_t kStep = kLanes * 4 / sizeof(Integer);
  Largest<bf16> even, odd;
  for (int64_t i = 0; i < block.size; ++i) {
    const Integer* key = static_cast<const Integer*>(block.keys) + i * block.stride;
    for (int64_t d = 0; d < block.depth; d += 2 * kStep) {
      prefetch(key + d);
      even.add(key + d);
      if (d + kStep >= block.depth) break;
      prefetch(key + d + kStep);
      odd.add(key + d + kStep);
    }
  }
  return std::max(even.result(), odd.result());
}

// A pair of bf16 in each 32-bit lane is taken apart by a shift and a mask: no lane is shuffled.
inline Vec even(IntVec pairs) {
  return (Vec)(pairs << 16);
}
inline Vec odd(IntVec pairs) {
  return (Vec)(pairs & INT32_C(-65536));
}

void widen_bf16(const KeyBlock& block, float* keys) {
  for (int64_t i = 0; i < block.size; ++i) {
    const uint16_t* key = static_cast<const uint16_t*>(block.keys) + i * block.stride;
    auto* out = reinterpret_cast<uint32_t*>(keys + i * block.depth);
    for (int64_t d = 0; d < block.depth; ++d) out[d] = static_cast<uint32_t>(key[d]) << 16;
  }
}

void pack_one_f32(const float* query, int64_t depth, void* packed) {
  memcpy(packed, query, depth * sizeof(float));
}
// In the order in which even() and odd() give the elements of keys.
void pack_one_split(const float* query, int64_t depth, void* packed) {
  auto* out = static_cast<float*>(packed);
  for (int64_t d = 0; d < depth; d += 2 * kLanes) {
    for (int i = 0; i < kLanes; ++i) {
      out[d + i] = query[d + 2 * i];
      out[d + kLanes + i] = query[d + 2 * i + 1];
    }
  }
}
void pack_many_f32(const float* queries, int64_t depth, void* packed) {
  auto* out = static_cast<float*>(packed);
  for (int64_t d = 0; d < depth; ++d) {
    for (int i = 0; i < kQueryLanes; ++i) out[d * kQueryLanes + i] = queries[i * depth + d];
  }
}

template <bool bf16>
uint32_t score_one(const KeyBlock& block, const void* packed, float* scores) {
  using Element = std::conditional_t<bf16, uint16_t, float>;
  const auto* query = static_cast<const float*>(packed);
  Largest<bf16> even_rows, odd_rows;
  for (int64_t i = 0; i < block.size; i += kLanes) {
    Vec sums[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      const Element* key = static_cast<const Element*>(block.keys) + (i + r) * block.stride;
      Vec first = {}, second = {};
      for (int64_t d = 0; d < block.depth; d += 2 * kLanes) {
        const Vec q0 = load<Vec>(query + d), q1 = load<Vec>(query + d + kLanes);
        Largest<bf16>& most = r % 2 == 0 ? even_rows : odd_rows;
        prefetch(key + d);
        most.add(key + d);
        if constexpr (bf16) {
          const auto pairs = load<IntVec>(key + d);
          first += even(pairs) * q0;
          second += odd(pairs) * q1;
        } else {
          prefetch(key + d + kLanes);
          most.add(key + d + kLanes);
          first += load<Vec>(key + d) * q0;
          second += load<Vec>(key + d + kLanes) * q1;
        }
      }
      sums[r] = first + second;
    }
    const Vec products = sums_of_lanes(sums);
    memcpy(scores + i, &products, sizeof(products));
  }
  return std::max(even_rows.result(), odd_rows.result());
}

// Keys f32.
void score_many(const KeyBlock& block, const void* packed, float* scores) {
  const auto* queries = static_cast<const float*>(packed);
  for (int64_t i = 0; i < block.size; i += kKeysAtOnce) {
    const float* key = static_cast<const float*>(block.keys) + i * block.stride;
    Vec sums[kKeysAtOnce][kVectors] = {};
    for (int64_t d = 0; d < block.depth; ++d) {
      Vec q[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) q[v] = load<Vec>(queries + d * kQueryLanes + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kKeysAtOnce; ++r) {
        const Vec x = splat(key[r * block.stride + d]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[r][v] += x * q[v];
      }
    }
    memcpy(scores + i * kQueryLanes, sums, sizeof(sums));
  }
}

int64_t reach_one(const float* scores, int64_t size, float threshold, int32_t* found) {
  const Vec limit = splat(threshold);
  int64_t count = 0, i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    uint32_t reached = lane_mask(~(load<Vec>(scores + i) < limit));
    for (; reached != 0; reached &= reached - 1) {
      found[count++] = static_cast<int32_t>(i + __builtin_ctz(reached));
    }
  }
  for (; i < size; ++i) {
    if (!(scores[i] < threshold)) found[count++] = static_cast<int32_t>(i);
  }
  return count;
}

int64_t reach_many(const float* scores, int64_t size, const float* thresholds, int32_t* found) {
  constexpr int kRows = 4;  // most are rejected together
  Vec limits[kVectors];
  memcpy(limits, thresholds, sizeof(limits));
  int64_t count = 0;
  const auto row = [&](int64_t i) {
    for (int v = 0; v < kVectors; ++v) {
      const auto at = static_cast<int32_t>(i * kQueryLanes + v * kLanes);
      uint32_t reached = lane_mask(~(load<Vec>(scores + at) < limits[v]));
      for (; reached != 0; reached &= reached - 1) found[count++] = at + __builtin_ctz(reached);
    }
  };
  int64_t i = 0;
  for (; i + kRows <= size; i += kRows) {
    IntVec below = IntVec{} - 1;
#pragma GCC unroll 16
    for (int v = 0; v < kRows * kVectors; ++v) {
      below &= load<Vec>(scores + i * kQueryLanes + v * kLanes) < limits[v % kVectors];
    }
    if (lane_mask(~below) == 0) continue;
    for (int r = 0; r < kRows; ++r) row(i + r);
  }
  for (; i < size; ++i) row(i);
  return count;
}

ScanTables make_tables() {
  ScanTables tables;
  tables.f32 = {.largest = largest<false>,
                .pack_one = pack_one_f32,
                .pack_many = pack_many_f32,
                .score_one = score_one<false>,
                .score_many = score_many,
                .reach_one = reach_one,
                .reach_many = reach_many};
  tables.bf16 = tables.f32;
  tables.bf16.largest = largest<true>;
  tables.bf16.widen = widen_bf16;
  tables.bf16.pack_one = pack_one_split;
  tables.bf16.score_one = score_one<true>;
  return tables;
}

}  // namespace
}  // namespace reynard::knn::cpu
