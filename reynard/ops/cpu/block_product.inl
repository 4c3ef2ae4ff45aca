// Registers of bf16 and their 16-bit and 32-bit values in other orders, for files that pack blocks
// of matrices with AVX-512. Everything is in an unnamed namespace: each of these files has its own
// copy.

#include "reynard/ops/block_product_kernels.h"

#include <immintrin.h>

#include <cstdint>

namespace reynard::ops::cpu {
namespace {

using BF16 = uint16_t;

constexpr int64_t kLanes = 16;
constexpr int64_t kStep = 32;  // values of a register
// How far ahead packing asks for rows or columns that lie far apart in memory.
constexpr int64_t kPackAhead = 16;

inline __mmask32 first_values(int64_t count) {
  return count >= kStep ? 0xffffffffU : count <= 0 ? 0U : (1U << count) - 1;
}
inline __mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xffffU : (1U << count) - 1);
}
inline __m512i load(const BF16* p, __mmask32 mask) {
  return _mm512_maskz_loadu_epi16(mask, p);
}

// Values of two registers side by side: those of the first halves, and of the second.
alignas(64) constexpr int16_t kLowPairs[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                               37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                               11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
alignas(64) constexpr int16_t kHighPairs[32] = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21,
                                                53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58,
                                                27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
inline __m512i low_pairs(__m512i even, __m512i odd) {
  return _mm512_permutex2var_epi16(even, _mm512_load_si512(kLowPairs), odd);
}
inline __m512i high_pairs(__m512i even, __m512i odd) {
  return _mm512_permutex2var_epi16(even, _mm512_load_si512(kHighPairs), odd);
}

// 16 x 16 values of 32 bits: lane j of r[i] becomes lane i of r[j]. Blocks of 1, 2, 4 and 8 change
// places.
inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 16; half += 8) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[half + i] = _mm512_shuffle_i32x4(r[half + i], r[half + i + 4], 0x88);
      t[half + i + 4] = _mm512_shuffle_i32x4(r[half + i], r[half + i + 4], 0xdd);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

inline bool has_contiguous_columns(const Factor& a) {
  return a.row == 1 && a.column != 1;
}

// Where they are: 2 kCount columns from k on, as pairs side by side, of 16 rows from r on and of
// the 16 behind them. What lies far apart in memory is asked for in advance.
template <int64_t kCount>
inline void load_pairs(
    const FactorPart& a, int64_t r, int64_t k, __m512i (&low)[kCount], __m512i (&high)[kCount]) {
  const __mmask32 mask = first_values(a.rows - r);
  const int64_t stride = a.of.column;
#pragma GCC unroll 16
  for (int64_t i = 0; i < kCount; ++i) {
    const int64_t at = k + 2 * i;
    const BF16* from = a.of.data + (a.column + at) * stride + a.row + r;
    __builtin_prefetch(from + kPackAhead * stride);
    __builtin_prefetch(from + (kPackAhead + 1) * stride);
    const __m512i even = load(from, at < a.columns ? mask : 0);
    const __m512i odd = load(from + stride, at + 1 < a.columns ? mask : 0);
    low[i] = low_pairs(even, odd);
    high[i] = high_pairs(even, odd);
  }
}

// A vector of sums of a block of depth: to c ...
inline void store_sum(const BlockProduct& p, __m512 sum, __mmask16 mask, float* c) {
  if (p.add) sum += _mm512_maskz_loadu_ps(mask, c);
  _mm512_mask_storeu_ps(c, mask, sum);
}
// ... or, of the last block of a result in bf16, rounded once.
inline void round_sum(
    const BlockProduct& p, __m512 sum, __mmask16 mask, const float* c, BF16* rounded) {
  if (p.add) sum += _mm512_maskz_loadu_ps(mask, c);
  if (p.add_rounded) {
    const __m256i old = _mm256_maskz_loadu_epi16(mask, rounded);
    sum += _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(old), 16));
  }
  _mm256_mask_storeu_epi16(rounded, mask, (__m256i)_mm512_cvtneps_pbh(sum));
}

}  // namespace
}  // namespace reynard::ops::cpu
