#pragma once
// Tile arithmetic in bf16 with f32 sums: the layouts that vdpbf16ps and the AMX tile unit both
// read, and packing into them. The matrix products themselves are in kernels_avx512_bf16.cpp and
// kernels_amx.cpp.
//
// A left factor is [row][depth]; a right factor [depth / 2][column][2], that is pairs along the
// depth side by side, as one 32-bit lane holds them.

#if defined(__AVX512BF16__)

#include "reynard/attention/cpu/vector.h"
#include "reynard/attention/cpu/visibility.h"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace reynard::attention::cpu {
namespace {

inline void convert(BFloat16 x, BFloat16& to) {
  to = x;
}
template <class Source>
inline void convert(Source x, BFloat16& to) {
  from_float(to_float(x), to);
}

// Transposes 16 x 16 values of 32 bits, rows in registers.
inline void transpose16(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Two vectors of f32 as bf16: lane i of `even`, then lane i of `odd`, side by side.
inline __m512i interleaved(Vec even, Vec odd) {
  alignas(64) static constexpr int16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                     21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                     11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder),
                                  (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

// Words of two registers side by side: those of the first halves, and of the second.
alignas(64) constexpr int16_t kLowPairs[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                               37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                               11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
alignas(64) constexpr int16_t kHighPairs[32] = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21,
                                                53, 22, 54, 23, 55, 24, 56, 25, 57, 26, 58,
                                                27, 59, 28, 60, 29, 61, 30, 62, 31, 63};

// kDimStep: 16 or 32, of which head dimensions are padded to a multiple.
template <int64_t kQueriesPerBlock,
          int64_t kKeysPerBlock,
          int64_t kQueriesPerPanel,
          int64_t kDimStep>
struct LayoutBf16 {
  using Value = BFloat16;
  static constexpr int64_t kQueries = kQueriesPerBlock;
  static constexpr int64_t kKeys = kKeysPerBlock;
  // Matrices with queries as columns lie in panels of this many: what a product reads together then
  // fills all sets of the first-level cache, where part of long rows would fall into few.
  static constexpr int64_t kPanel = kQueriesPerPanel;
  static constexpr int64_t kKeyStep = 32;  // depth of one AMX tile
  static constexpr int kExpDegree = 5;     // degree 4 (2.9e-6) would show in lse
  static constexpr bool kSharedLayout = false;
  static constexpr int64_t kForwardKeys = kKeys;  // most keys of a tile of the forward pass
  static constexpr bool kSumsBesideWeights = false;
  static constexpr bool kPairsOfProducts = false;

  static int64_t padded(int64_t head_dim) { return round_up(head_dim, kDimStep); }
  static int64_t right_stride(int64_t columns) { return 2 * columns; }

  // Left factors [row][d].
  template <class Source>
  static void pack_rows(const Source* rows,
                        int64_t row_stride,
                        int64_t num_rows,
                        int64_t head_dim,
                        Value* packed,
                        int64_t packed_rows) {
    const int64_t padded_dim = padded(head_dim);
    for (int64_t r = 0; r < packed_rows; ++r) {
      for (int64_t d = 0; d < padded_dim; d += 32) {
        const int64_t count = r < num_rows ? head_dim - d : 0;
        const __m512i values = load_row(rows + r * row_stride + d, count);
        Value* to = packed + r * padded_dim + d;
        if (has_32_dims(head_dim, d)) {
          _mm512_storeu_si512(to, values);
        } else {
          _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(values));
        }
      }
    }
  }

  // Whether padded rows hold 32 dimensions from d on, else 16: d is a multiple of 32.
  static bool has_32_dims(int64_t head_dim, int64_t d) {
    return kDimStep == 32 || padded(head_dim) - d >= 32;
  }

  // The first 32 values of a row that has `count` left; zeros beyond, where nothing is read.
  template <class Source>
  static __m512i load_row(const Source* row, int64_t count) {
    if (is_bf16(row)) {
      if (count >= 32) return _mm512_loadu_si512(row);
      return _mm512_maskz_loadu_epi16((1U << max_of(count, 0)) - 1, row);
    }
    alignas(64) Value values[32] = {};
    for (int64_t d = 0; d < min_of(32, count); ++d) convert(row[d], values[d]);
    return _mm512_load_si512(values);
  }

  // 16 rows x 32 dimensions as 16 pairs x 16 rows; zeros beyond the edges.
  template <class Source>
  static void load_pairs(const Source* rows,
                         int64_t row_stride,
                         int64_t num_rows,
                         int64_t num_dims,
                         __m512i (&pairs)[16]) {
#pragma GCC unroll 16
    for (int64_t r = 0; r < 16; ++r) {
      pairs[r] = load_row(rows + r * row_stride, r < num_rows ? num_dims : 0);
    }
    transpose16(pairs);
  }
  static constexpr bool is_bf16(const BFloat16*) {
    return true;
  }
  template <class Source>
  static constexpr bool is_bf16(const Source*) {
    return false;
  }

  // Left factors [d][row]: the transpose.
  template <class Source>
  static void pack_columns(const Source* rows,
                           int64_t row_stride,
                           int64_t num_rows,
                           int64_t head_dim,
                           Value* packed,
                           int64_t packed_rows) {
    for (int64_t r = 0; r < packed_rows; r += 16) {
      for (int64_t d = 0; d < padded(head_dim); d += 32) {
        __m512i pairs[16];
        load_pairs(rows + r * row_stride + d, row_stride, num_rows - r, head_dim - d, pairs);
        const bool all = has_32_dims(head_dim, d);
#pragma GCC unroll 16
        for (int64_t i = 0; i < 16; ++i) {
          if (i >= 8 && !all) break;
          Value* to = packed + (d + 2 * i) * packed_rows + r;
          const __m512i odd = _mm512_srli_epi32(pairs[i], 16);
          _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(pairs[i]));
          _mm256_store_si256(reinterpret_cast<__m256i*>(to + packed_rows),
                             _mm512_cvtepi32_epi16(odd));
        }
      }
    }
  }

  // Right factors with queries as columns, pairs along d.
  template <class Source>
  static void pack_query_lanes(
      const Source* rows, int64_t row_stride, int64_t num_rows, int64_t head_dim, Value* packed) {
    for (int64_t r = 0; r < kQueries; r += 16) {
      for (int64_t d = 0; d < padded(head_dim); d += 32) {
        __m512i pairs[16];
        load_pairs(rows + r * row_stride + d, row_stride, num_rows - r, head_dim - d, pairs);
        const bool all = has_32_dims(head_dim, d);
#pragma GCC unroll 16
        for (int64_t i = 0; i < 16; ++i) {
          if (i >= 8 && !all) break;
          _mm512_store_si512(packed + r / kPanel * padded(head_dim) * kPanel +
                                 ((d / 2 + i) * kPanel + r % kPanel) * 2,
                             pairs[i]);
        }
      }
    }
  }

  // Right factors with dimensions as columns, pairs along the queries.
  template <class Source>
  static void pack_query_rows(
      const Source* rows, int64_t row_stride, int64_t num_rows, int64_t head_dim, Value* packed) {
    const int64_t padded_dim = padded(head_dim);
    for (int64_t r = 0; r < kQueries; r += 2) {
      for (int64_t d = 0; d < padded_dim; d += 32) {
        const Source* from = rows + r * row_stride + d;
        const __m512i even = load_row(from, r < num_rows ? head_dim - d : 0);
        const __m512i odd = load_row(from + row_stride, r + 1 < num_rows ? head_dim - d : 0);
        Value* to = packed + r * padded_dim + 2 * d;
        _mm512_store_si512(to, _mm512_permutex2var_epi16(even, _mm512_load_si512(kLowPairs), odd));
        if (!has_32_dims(head_dim, d)) continue;
        _mm512_store_si512(to + 32,
                           _mm512_permutex2var_epi16(even, _mm512_load_si512(kHighPairs), odd));
      }
    }
  }

  static void store_right(Value* weights, int64_t j, int64_t q, Vec even, Vec odd) {
    _mm512_store_si512(weights + q / kPanel * kKeys * kPanel + (j / 2 * kPanel + q % kPanel) * 2,
                       interleaved(even, odd));
  }
  // Rows [j, j + count) and `queries` columns from q on of the right factor.
  static void zero_right(Value* weights, int64_t j, int64_t count, int64_t q, int64_t queries) {
    for (const int64_t end = q + queries; q < end; q += 32) {
      Value* to = weights + q / kPanel * kKeys * kPanel + (j / 2 * kPanel + q % kPanel) * 2;
      for (int64_t pair = 0; pair < count / 2; ++pair) memset(to + pair * kPanel * 2, 0, 128);
    }
  }
  static void store_left(Value* weights, int64_t j, int64_t q, Vec even, Vec odd) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm256_store_si256(reinterpret_cast<__m256i*>(weights + j * kQueries + q),
                       _mm512_castsi512_si256(both));
    _mm256_store_si256(reinterpret_cast<__m256i*>(weights + (j + 1) * kQueries + q),
                       _mm512_extracti64x4_epi64(both, 1));
  }
  // Rows j, j + 1 and 32 queries from q on: as the left factor, and as the right one too.
  static void store_left(Value* left, int64_t j, int64_t q, const Vec (&rows)[2][2]) {
    for (int r = 0; r < 2; ++r) {
      _mm512_store_si512(left + (j + r) * kQueries + q,
                         (__m512i)_mm512_cvtne2ps_pbh(rows[r][1], rows[r][0]));
    }
  }
  static void store_both(Value* left, Value* right, int64_t j, int64_t q, const Vec (&rows)[2][2]) {
    const __m512i even = (__m512i)_mm512_cvtne2ps_pbh(rows[0][1], rows[0][0]);
    const __m512i odd = (__m512i)_mm512_cvtne2ps_pbh(rows[1][1], rows[1][0]);
    _mm512_store_si512(left + j * kQueries + q, even);
    _mm512_store_si512(left + (j + 1) * kQueries + q, odd);
    Value* to = right + q / kPanel * kKeys * kPanel + (j / 2 * kPanel + q % kPanel) * 2;
    _mm512_store_si512(to, _mm512_permutex2var_epi16(even, _mm512_load_si512(kLowPairs), odd));
    _mm512_store_si512(to + 32,
                       _mm512_permutex2var_epi16(even, _mm512_load_si512(kHighPairs), odd));
  }
};

}  // namespace
}  // namespace reynard::attention::cpu

#endif  // __AVX512BF16__
