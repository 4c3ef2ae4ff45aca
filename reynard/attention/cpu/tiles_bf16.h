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

template <int64_t kQueriesPerBlock, int64_t kKeysPerBlock>
struct LayoutBf16 {
  using Value = BFloat16;
  static constexpr int64_t kQueries = kQueriesPerBlock;
  static constexpr int64_t kKeys = kKeysPerBlock;
  static constexpr int64_t kKeyStep = 32;  // depth of one AMX tile
  static constexpr int kExpDegree = 5;     // degree 4 (2.9e-6) would show in lse
  static constexpr bool kRoundsP = true;
  static constexpr bool kSharedLayout = false;

  static int64_t padded(int64_t head_dim) { return round_up(head_dim, 32); }
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
      Value* to = packed + r * padded_dim;
      const int64_t filled = r < num_rows ? head_dim : 0;
      const Source* from = rows + r * row_stride;
      for (int64_t d = 0; d < filled; ++d) convert(from[d], to[d]);
      memset(to + filled, 0, (padded_dim - filled) * sizeof(Value));
    }
  }

  // 16 rows x 32 dimensions as 16 pairs x 16 rows; zeros beyond the edges.
  template <class Source>
  static void load_pairs(const Source* rows,
                         int64_t row_stride,
                         int64_t num_rows,
                         int64_t num_dims,
                         __m512i (&pairs)[16]) {
    for (int64_t r = 0; r < 16; ++r) {
      alignas(64) Value row[32] = {};
      const int64_t filled = r < num_rows ? max_of(0, min_of(32, num_dims)) : 0;
      if (filled == 32 && sizeof(Source) == sizeof(Value) && is_bf16(rows)) {
        pairs[r] = _mm512_loadu_si512(rows + r * row_stride);
        continue;
      }
      for (int64_t d = 0; d < filled; ++d) convert(rows[r * row_stride + d], row[d]);
      pairs[r] = _mm512_load_si512(row);
    }
    transpose16(pairs);
  }
  static constexpr bool is_bf16(const BFloat16*) { return true; }
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
        for (int64_t i = 0; i < 16; ++i) {
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
        for (int64_t i = 0; i < 16; ++i) {
          _mm512_store_si512(packed + ((d / 2 + i) * kQueries + r) * 2, pairs[i]);
        }
      }
    }
  }

  // Right factors with dimensions as columns, pairs along the queries.
  template <class Source>
  static void pack_query_rows(
      const Source* rows, int64_t row_stride, int64_t num_rows, int64_t head_dim, Value* packed) {
    const int64_t padded_dim = padded(head_dim);
    memset(packed, 0, kQueries * padded_dim * sizeof(Value));
    for (int64_t r = 0; r < num_rows; ++r) {
      Value* to = packed + r / 2 * 2 * padded_dim + r % 2;
      const Source* from = rows + r * row_stride;
      for (int64_t d = 0; d < head_dim; ++d) convert(from[d], to[2 * d]);
    }
  }

  static void store_right(Value* weights, int64_t j, int64_t q, Vec even, Vec odd) {
    _mm512_store_si512(weights + (j / 2 * kQueries + q) * 2, interleaved(even, odd));
  }
  static void store_left(Value* weights, int64_t j, int64_t q, Vec even, Vec odd) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm256_store_si256(reinterpret_cast<__m256i*>(weights + j * kQueries + q),
                       _mm512_castsi512_si256(both));
    _mm256_store_si256(reinterpret_cast<__m256i*>(weights + (j + 1) * kQueries + q),
                       _mm512_extracti64x4_epi64(both, 1));
  }
  static Vec add_rounded(Vec sum, Vec even, Vec odd) {
    const __m512i one = _mm512_set1_epi16(0x3f80);
    return _mm512_dpbf16_ps(sum, (__m512bh)interleaved(even, odd), (__m512bh)one);
  }
};

}  // namespace
}  // namespace reynard::attention::cpu

#endif  // __AVX512BF16__
