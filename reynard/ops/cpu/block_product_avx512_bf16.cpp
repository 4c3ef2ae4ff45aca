// Products of blocks of bf16 by vdpbf16ps, two of which a Zen 5 starts in a cycle. A panel of 64
// columns by 256 of the depth stays in the first-level cache while the rows of a block go by; the
// next one is asked for meanwhile.

#include "reynard/ops/block_product_kernels.h"
#include "reynard/ops/cpu/block_product.inl"

#include <immintrin.h>

namespace reynard::ops::cpu {

namespace {

// 4 x 4 quarters of registers: quarter j of r[i] becomes quarter i of r[j].
inline void transpose_quarters(__m512i (&r)[4]) {
  const __m512i even[2] = {_mm512_shuffle_i32x4(r[0], r[1], 0x88),
                           _mm512_shuffle_i32x4(r[2], r[3], 0x88)};
  const __m512i odd[2] = {_mm512_shuffle_i32x4(r[0], r[1], 0xdd),
                          _mm512_shuffle_i32x4(r[2], r[3], 0xdd)};
  r[0] = _mm512_shuffle_i32x4(even[0], even[1], 0x88);
  r[1] = _mm512_shuffle_i32x4(odd[0], odd[1], 0x88);
  r[2] = _mm512_shuffle_i32x4(even[0], even[1], 0xdd);
  r[3] = _mm512_shuffle_i32x4(odd[0], odd[1], 0xdd);
}

// Rows of the source are rows of the panel: pairs of rows are interleaved.
void panel_of_rows(const FactorPart& b, int64_t depth, BF16* to) {
  const __mmask32 masks[2] = {first_values(b.columns), first_values(b.columns - kStep)};
  for (int64_t k = 0; k < depth; k += 2) {
    const BF16* from = b.of.data + (b.row + k) * b.of.row + b.column;
    const bool even = k < b.rows, odd = k + 1 < b.rows;
    for (int64_t half = 0; half < 2; ++half) {
      __builtin_prefetch(from + kPackAhead * b.of.row + half * kStep);
      __builtin_prefetch(from + (kPackAhead + 1) * b.of.row + half * kStep);
      const __m512i first = load(from + half * kStep, even ? masks[half] : 0);
      const __m512i second = load(from + b.of.row + half * kStep, odd ? masks[half] : 0);
      _mm512_store_si512(to + k * kPanelColumns + half * 2 * kStep, low_pairs(first, second));
      _mm512_store_si512(to + k * kPanelColumns + half * 2 * kStep + kStep,
                         high_pairs(first, second));
    }
  }
}

// Columns of the source are contiguous: pairs lie there, 16 x 16 of them are transposed.
void panel_of_columns(const FactorPart& b, int64_t depth, BF16* to) {
  for (int64_t c = 0; c < kPanelColumns; c += kLanes) {
    for (int64_t k = 0; k < depth; k += kStep) {
      __m512i pairs[16];
      const __mmask32 mask = first_values(b.rows - k);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        const BF16* from = b.of.data + (b.column + c + i) * b.of.column + b.row + k;
        pairs[i] = load(from, c + i < b.columns ? mask : 0);
      }
      transpose(pairs);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        _mm512_store_si512(to + (k / 2 + i) * 2 * kPanelColumns + 2 * c, pairs[i]);
      }
    }
  }
}

void pack_panel(const FactorPart& b, int64_t depth, BF16* packed) {
  if (b.of.column == 1) return panel_of_rows(b, depth, packed);
  panel_of_columns(b, depth, packed);
}

// Values from one packed group to the next, [depth / 2][4][2] each: with those of `depth` alone,
// groups of a power of two would fall into few cache sets.
constexpr int64_t left_group_stride(int64_t depth) {
  return kLeftGroupRows * depth + 32;
}

// Columns of the source are contiguous: pairs of them are interleaved, and of four pairs of 16 rows
// those of four rows go to each group.
void groups_of_columns(const FactorPart& a, int64_t depth, BF16* to) {
  const int64_t stride = left_group_stride(depth);
  for (int64_t k = 0; k < depth; k += 8) {
    for (int64_t r = 0; r < a.rows; r += kStep) {
      __m512i low[4], high[4];
      load_pairs(a, r, k, low, high);
      transpose_quarters(low);
      transpose_quarters(high);
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; ++i) {
        BF16* group = to + (r / kLeftGroupRows + i) * stride + k * kLeftGroupRows;
        _mm512_store_si512(group, low[i]);
        _mm512_store_si512(group + kLanes / kLeftGroupRows * stride, high[i]);
      }
    }
  }
}

// Pairs lie in rows of the source: those of four rows go side by side.
void groups_of_rows(const FactorPart& a, int64_t depth, BF16* to) {
  const int64_t stride = left_group_stride(depth);
  for (int64_t r = 0; r < a.rows; r += kLeftGroupRows) {
    for (int64_t k = 0; k < depth; k += kStep) {
      __m512i x[kLeftGroupRows];
#pragma GCC unroll 4
      for (int64_t i = 0; i < kLeftGroupRows; ++i) {
        const BF16* from = a.of.data + (a.row + r + i) * a.of.row + a.column + k;
        x[i] = load(from, r + i < a.rows ? first_values(a.columns - k) : 0);
      }
      const __m512i low[2] = {_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpacklo_epi32(x[2], x[3])};
      const __m512i high[2] = {_mm512_unpackhi_epi32(x[0], x[1]),
                               _mm512_unpackhi_epi32(x[2], x[3])};
      // Pair 4 i + j of the four rows is quarter i of the j-th.
      __m512i groups[4] = {_mm512_unpacklo_epi64(low[0], low[1]),
                           _mm512_unpackhi_epi64(low[0], low[1]),
                           _mm512_unpacklo_epi64(high[0], high[1]),
                           _mm512_unpackhi_epi64(high[0], high[1])};
      transpose_quarters(groups);
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; ++i) {
        _mm512_store_si512(to + r / kLeftGroupRows * stride + k * kLeftGroupRows + i * kStep,
                           groups[i]);
      }
    }
  }
}

int64_t packed_rows_values(int64_t rows, int64_t depth) {
  return (rows + kStep - 1) / kStep * kStep / kLeftGroupRows * left_group_stride(depth);
}

LeftRows pack_rows(const FactorPart& a, int64_t depth, BF16* packed) {
  if (has_contiguous_columns(a.of)) {
    groups_of_columns(a, depth, packed);
  } else {
    groups_of_rows(a, depth, packed);
  }
  return {packed, left_group_stride(depth), 2, 2 * kLeftGroupRows};
}

// 64 columns by this many values are two thirds of a first-level cache of 48 KB.
constexpr int64_t kBlockDepth = 256;

// Where the sums of a micro-tile go.
struct TilePlace {
  int64_t row, column;
  __mmask16 last;  // lanes of its last vector
};

template <int kRows, int kVectors>
inline void store_sums(const BlockProduct& p,
                       const TilePlace& place,
                       const __m512 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    float* c = p.c + (place.row + r) * p.c_stride + place.column;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __mmask16 mask = v + 1 < kVectors ? 0xffff : place.last;
      store_sum(p, sums[r][v], mask, c + v * kLanes);
    }
  }
}

template <int kRows, int kVectors>
inline void round_sums(const BlockProduct& p,
                       const TilePlace& place,
                       const __m512 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const float* c = p.c + (place.row + r) * p.c_stride + place.column;
    BF16* to = p.rounded + (place.row + r) * p.rounded_stride + place.column;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __mmask16 mask = v + 1 < kVectors ? 0xffff : place.last;
      round_sum(p, sums[r][v], mask, c + v * kLanes, to + v * kLanes);
    }
  }
}

template <int kRows, int kVectors>
inline void multiply_tile(const BlockProduct& p, const BF16* b, const TilePlace& place) {
  const BF16* a =
      p.a.data + place.row / kLeftGroupRows * p.a.group + place.row % kLeftGroupRows * p.a.row;
  __m512 sums[kRows][kVectors] = {};
#pragma GCC unroll 4
  for (int64_t k = 0; k < p.depth; k += 2) {
    __m512i columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      columns[v] = _mm512_load_si512(b + k * kPanelColumns + v * kStep);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, a + r * p.a.row, sizeof pair);
      const __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)x, (__m512bh)columns[v]);
      }
    }
    a += p.a.pair;
  }
  p.rounded != nullptr ? round_sums(p, place, sums) : store_sums(p, place, sums);
}

// Asks for one part of `parts` of the panel that is multiplied next.
inline void prefetch_part(const BlockProduct& p, const BF16* next, int64_t part, int64_t parts) {
  const int64_t lines = p.depth * kPanelColumns / kStep;
  for (int64_t line = lines * part / parts; line < lines * (part + 1) / parts; ++line) {
    _mm_prefetch(reinterpret_cast<const char*>(next + line * kStep), _MM_HINT_T1);
  }
}

template <int kVectors>
void multiply_panel(
    const BlockProduct& p, const BF16* b, const BF16* next, int64_t column, __mmask16 last) {
  int64_t row = 0;
  for (; row + kLeftGroupRows <= p.rows; row += kLeftGroupRows) {
    if (next != nullptr) prefetch_part(p, next, row / kLeftGroupRows, p.rows / kLeftGroupRows);
    multiply_tile<kLeftGroupRows, kVectors>(p, b, {row, column, last});
  }
  for (; row < p.rows; ++row) multiply_tile<1, kVectors>(p, b, {row, column, last});
}

void multiply(const BlockProduct& p) {
  for (int64_t column = 0; column < p.columns; column += kPanelColumns) {
    const BF16* b = p.b + column / kPanelColumns * p.b_stride;
    const BF16* next = column + kPanelColumns < p.columns ? b + p.b_stride : nullptr;
    const int64_t left = p.columns - column;
    const int64_t vectors = left >= kPanelColumns ? 4 : (left + kLanes - 1) / kLanes;
    const __mmask16 last = first_lanes(left - (vectors - 1) * kLanes);
    switch (vectors) {
      case 4:
        multiply_panel<4>(p, b, next, column, last);
        break;
      case 3:
        multiply_panel<3>(p, b, next, column, last);
        break;
      case 2:
        multiply_panel<2>(p, b, next, column, last);
        break;
      default:
        multiply_panel<1>(p, b, next, column, last);
    }
  }
}

constexpr BlockProductKernels kTable = {.in_place_depth = 2,
                                        .rows_at_once = kLeftGroupRows,
                                        .block_depth = kBlockDepth,
                                        .pack_panel = &pack_panel,
                                        .packed_rows_values = &packed_rows_values,
                                        .pack_rows = &pack_rows,
                                        .multiply = &multiply};

}  // namespace

const BlockProductKernels& block_product_kernels_avx512_bf16() {
  return kTable;
}

}  // namespace reynard::ops::cpu
