#pragma once
// Vectors as wide as the instruction set that includes this file, in an unnamed namespace: each
// instruction set has its own copy.

#include "reynard/knn/cpu/scan_kernels.h"

#include <immintrin.h>

#include <cstring>

namespace reynard::knn::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kKeysAtOnce = 8;  // as many sums as hide the latency of a multiply-add
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kKeysAtOnce = 4;
#else
constexpr int kLanes = 4;
constexpr int kKeysAtOnce = 2;
#endif
constexpr int kVectors = kQueryLanes / kLanes;  // of a group of queries

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));

template <class Register>
inline Register load(const void* p) {
  Register x;
  memcpy(&x, p, sizeof(x));
  return x;
}
inline Vec splat(float x) {
  return x - Vec{};
}

// One bit per lane of a comparison.
inline uint32_t lane_mask(IntVec compared) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask((__m512i)compared);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)compared));
#else
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)compared));
#endif
}

// Lane i of the result is the sum of the lanes of rows[i]. Each step interleaves two vectors of
// partial sums and adds the halves.
template <class Register>
inline Register sums_of_lanes(Register (&rows)[kLanes]) {
#if defined(__AVX512F__)
  constexpr IntVec kLow = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
#elif defined(__AVX2__)
  constexpr IntVec kLow = {0, 8, 1, 9, 2, 10, 3, 11};
#else
  constexpr IntVec kLow = {0, 4, 1, 5};
#endif
  constexpr IntVec kHigh = kLow + kLanes / 2;
#pragma GCC unroll 4
  for (int count = kLanes / 2; count > 0; count /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < count; ++i) {
      rows[i] = __builtin_shuffle(rows[i], rows[i + count], kLow) +
                __builtin_shuffle(rows[i], rows[i + count], kHigh);
    }
  }
  return rows[0];
}

// Keys far ahead, into the second-level cache (Zen 4 has few lines on their way to the first): the
// scan of one query is bound by main memory.
constexpr int64_t kPrefetchBytes = 4096;
inline void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p) + kPrefetchBytes, _MM_HINT_T1);
}

}  // namespace
}  // namespace reynard::knn::cpu
