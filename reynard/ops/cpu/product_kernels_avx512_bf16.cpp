// Products of few rows of bf16 with weights of bf16 or int8 by vdpbf16ps, which does in one
// instruction what widening and two multiply-adds do: sixteen rows of x then cost little more than
// one. Both factors are read where they lie. Each sum goes through the depth in one order and its
// lanes are added in one order, whatever the other rows of x and of the weight.

#include "reynard/ops/product_kernels.h"

#include <immintrin.h>

namespace reynard::ops::cpu {

namespace {

using BF16 = uint16_t;

constexpr int64_t kStep = 32;     // values of a register
constexpr int kRowsAtOnce = 4;    // of the weight: they share what is loaded of x
constexpr int kTokensAtOnce = 4;  // of x: they share what is loaded of the weight
// Where rows are walked together, a weight is asked for at least this far ahead, in whole blocks of
// rows, so that each line is asked for once: hardware prefetch stops at the end of a page. As data
// that is read once: what the operators between products need again stays in the second-level
// cache.
constexpr int64_t kAheadBytes = 4096;

inline __m512bh load(const BF16* p) {
  return (__m512bh)_mm512_loadu_si512(p);
}
// Values of 8 bits are exact in bf16.
inline __m512bh load(const int8_t* p) {
  const auto* bytes = reinterpret_cast<const __m128i*>(p);
  const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128(bytes));
  const __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1));
  return _mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low));
}
// The first `count` values, then zeros.
template <class T>
inline __m512bh load(const T* p, int64_t count) {
  T padded[kStep] = {};
  __builtin_memcpy(padded, p, count * sizeof(T));
  return load(padded);
}

// Lane i: the sum of the lanes of v[i].
inline __m512 sums_of_lanes(const __m512 (&v)[16]) {
  __m512 pairs[8], fours[4], halves[2];
  for (int i = 0; i < 8; ++i) {
    pairs[i] =
        _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]) + _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
    fours[i] =
        _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  }
  for (int i = 0; i < 2; ++i) {
    halves[i] = _mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0x88) +
                _mm512_shuffle_f32x4(fours[2 * i], fours[2 * i + 1], 0xdd);
  }
  return _mm512_shuffle_f32x4(halves[0], halves[1], 0x88) +
         _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd);
}

// Rows of the weight that are walked beside each other: for one row of x none, so that a weight is
// read in the order of memory, which the hardware asks for by itself (on Zen 4 28 GB/s and more
// where four rows arrive at 18).
template <int kRows, int kTokens>
constexpr int kTogether = kTokens == 1 ? 1 : kRows;

// sums: those of four rows for each token.
template <int kRows, int kTokens, class Y, class Sums>
inline void store_sums(const ProductRows& p, int64_t row, int64_t token, const Sums& sums) {
  Y all[kTokensAtOnce * kRowsAtOnce];
  static_assert(sizeof all == sizeof sums);
  __builtin_memcpy(all, &sums, sizeof all);
  for (int t = 0; t < kTokens; ++t) {
    __builtin_memcpy(static_cast<Y*>(p.y) + (token + t) * p.rows + row,
                     all + t * kRowsAtOnce,
                     kRows * sizeof(Y));
  }
}

template <int kRows, int kTokens, class W>
inline void product_block(const ProductRows& p, int64_t row, int64_t token) {
  const BF16* x = static_cast<const BF16*>(p.x) + token * p.width;
  const W* weight = static_cast<const W*>(p.weight) + row * p.width;
  __m512 sums[kTokens][kRows] = {};
  const auto add = [&](int first, int64_t i, auto... count) __attribute__((always_inline)) {
    __m512bh values[kTokens];
    for (int t = 0; t < kTokens; ++t) values[t] = load(x + t * p.width + i, count...);
    for (int r = first; r < first + kTogether<kRows, kTokens>; ++r) {
      const __m512bh w = load(weight + r * p.width + i, count...);
      for (int t = 0; t < kTokens; ++t) sums[t][r] = _mm512_dpbf16_ps(sums[t][r], w, values[t]);
    }
  };
  const int64_t whole = p.width / kStep * kStep;
  const int64_t block_bytes = kRows * p.width * static_cast<int64_t>(sizeof(W));
  const int64_t ahead = (kAheadBytes + block_bytes - 1) / block_bytes * block_bytes;
  for (int first = 0; first < kRows; first += kTogether<kRows, kTokens>) {
    for (int64_t i = 0; i < whole; i += kStep) {
      if (kTokens > 1 && token == 0) {
        for (int r = 0; r < kRows; ++r) {
          __builtin_prefetch(reinterpret_cast<const char*>(weight + r * p.width + i) + ahead, 0, 0);
        }
      }
      add(first, i);
    }
    if (whole < p.width) add(first, whole, p.width - whole);
  }
  __m512 all[kTokensAtOnce * kRowsAtOnce] = {};
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kRows; ++r) all[t * kRowsAtOnce + r] = sums[t][r];
  }
  __m512 y = sums_of_lanes(all);
  if constexpr (sizeof(W) == 1) {
    y *= _mm512_broadcast_f32x4(_mm_maskz_loadu_ps((1U << kRows) - 1, p.scales + row));
  }
  if (p.y_is_f32) {
    store_sums<kRows, kTokens, float>(p, row, token, y);
  } else {
    store_sums<kRows, kTokens, BF16>(p, row, token, _mm512_cvtneps_pbh(y));
  }
}

template <int kRows, class W>
inline void product_tokens(const ProductRows& p, int64_t row) {
  int64_t token = 0;
  for (; token + kTokensAtOnce <= p.tokens; token += kTokensAtOnce) {
    product_block<kRows, kTokensAtOnce, W>(p, row, token);
  }
  switch (p.tokens - token) {
    case 1:
      return product_block<kRows, 1, W>(p, row, token);
    case 2:
      return product_block<kRows, 2, W>(p, row, token);
    case 3:
      return product_block<kRows, 3, W>(p, row, token);
    default:
      return;
  }
}

template <class W>
void product_rows(const ProductRows& p, int64_t begin, int64_t end) {
  int64_t row = begin;
  for (; row + kRowsAtOnce <= end; row += kRowsAtOnce) product_tokens<kRowsAtOnce, W>(p, row);
  for (; row < end; ++row) product_tokens<1, W>(p, row);
}

constexpr ProductKernels kTable = {.bf16_by_bf16 = &product_rows<BF16>,
                                   .bf16_by_int8 = &product_rows<int8_t>};

}  // namespace

const ProductKernels& product_kernels_avx512_bf16() {
  return kTable;
}

}  // namespace reynard::ops::cpu
