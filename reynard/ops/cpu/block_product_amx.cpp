// Products of blocks of bf16 by tiles of the matrix unit: 32 rows by 32 columns at a time, four
// tiles of sums, so that each loaded tile takes part in two products. Panels of the right factor
// are those of block_product_avx512_bf16.cpp, whose pairs of rows a tile reads as they lie; rows of
// the left factor lie one after the other.

#include "reynard/ops/block_product_kernels.h"
#include "reynard/ops/cpu/block_product.inl"
#include "reynard/tensor/amx_tiles.inl"

#include <immintrin.h>

namespace reynard::ops::cpu {

namespace {

constexpr int64_t kTileRows = 16;          // also f32 columns of a tile
constexpr int64_t kTileDepth = kStep;      // bf16 values in 64 bytes
constexpr int64_t kBlock = 2 * kTileRows;  // rows and columns of four tiles of sums
constexpr int64_t kPanelRowBytes = kPanelColumns * 2 * static_cast<int64_t>(sizeof(BF16));

// The matrix unit is fast enough for what comes from the second-level cache; adding sums to the
// result, once for each of these, is what it waits for (256: 4/5 of the speed; 768: too).
constexpr int64_t kBlockDepth = 512;

// Values from one packed row to the next: with those of `depth` alone, rows of a power of two would
// fall into few cache sets.
constexpr int64_t packed_stride(int64_t depth) {
  return depth + kTileDepth;
}
int64_t packed_rows_values(int64_t rows, int64_t depth) {
  return (rows + kBlock - 1) / kBlock * kBlock * packed_stride(depth);
}

// Rows of the source are rows of the result.
void copy_rows(const FactorPart& a, int64_t depth, BF16* to) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const BF16* from = a.of.data + (a.row + r) * a.of.row + a.column;
    for (int64_t k = 0; k < depth; k += kStep) {
      _mm512_store_si512(to + r * packed_stride(depth) + k,
                         load(from + k, first_values(a.columns - k)));
    }
  }
}

// Columns of the source are contiguous: of 32 of them 16 pairs for 32 rows are transposed.
void transpose_columns(const FactorPart& a, int64_t depth, BF16* to) {
  const int64_t stride = packed_stride(depth);
  for (int64_t k = 0; k < depth; k += kStep) {
    for (int64_t r = 0; r < a.rows; r += kStep) {
      __m512i low[kLanes], high[kLanes];
      load_pairs(a, r, k, low, high);
      transpose(low);
      transpose(high);
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        _mm512_store_si512(to + (r + i) * stride + k, low[i]);
        _mm512_store_si512(to + (r + kLanes + i) * stride + k, high[i]);
      }
    }
  }
}

LeftRows pack_rows(const FactorPart& a, int64_t depth, BF16* packed) {
  if (has_contiguous_columns(a.of)) {
    transpose_columns(a, depth, packed);
  } else {
    copy_rows(a, depth, packed);
  }
  const int64_t stride = packed_stride(depth);
  return {packed, kLeftGroupRows * stride, stride, 2};
}

// The sums of 32 rows and 32 columns: a of rows `stride` values apart, b within a panel.
void multiply_tiles(
    const BF16* a, int64_t stride, const BF16* b, int64_t depth, float (&sums)[kBlock * kBlock]) {
  const int64_t row_bytes = stride * static_cast<int64_t>(sizeof(BF16));
  // GCC does not know that loads into tiles read memory: stores before this stay before it.
  __asm__ volatile("" ::: "memory");
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < depth; k += kTileDepth) {
    const BF16* panel = b + k * kPanelColumns;
    _tile_loadd(4, a + k, row_bytes);
    _tile_loadd(6, panel, kPanelRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, panel + kStep, kPanelRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTileRows * stride + k, row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  constexpr int64_t kSumBytes = kBlock * static_cast<int64_t>(sizeof(float));
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(1, sums + kTileRows, kSumBytes);
  _tile_stored(2, sums + kTileRows * kBlock, kSumBytes);
  _tile_stored(3, sums + kTileRows * kBlock + kTileRows, kSumBytes);
}

// Where the sums of a block go.
struct BlockPlace {
  int64_t row, rows, column, columns;
};

void store_sums(const BlockProduct& p, const BlockPlace& place, const float* sums) {
  for (int64_t r = 0; r < place.rows; ++r) {
    float* c = p.c + (place.row + r) * p.c_stride + place.column;
    for (int64_t j = 0; j < place.columns; j += kLanes) {
      const __mmask16 mask = first_lanes(place.columns - j);
      store_sum(p, _mm512_load_ps(sums + r * kBlock + j), mask, c + j);
    }
  }
}

void round_sums(const BlockProduct& p, const BlockPlace& place, const float* sums) {
  for (int64_t r = 0; r < place.rows; ++r) {
    const float* c = p.c + (place.row + r) * p.c_stride + place.column;
    BF16* to = p.rounded + (place.row + r) * p.rounded_stride + place.column;
    for (int64_t j = 0; j < place.columns; j += kLanes) {
      const __mmask16 mask = first_lanes(place.columns - j);
      round_sum(p, _mm512_load_ps(sums + r * kBlock + j), mask, c + j, to + j);
    }
  }
}

// Rows of a left factor that do not fill a block, in one of zeros.
struct EdgeRows {
  static constexpr int64_t kStride = packed_stride(kBlockDepth);
  alignas(64) BF16 values[kBlock * kStride];

  void fill(const BF16* from, int64_t stride, int64_t rows, int64_t depth) {
    for (int64_t r = 0; r < kBlock; ++r) {
      for (int64_t k = 0; k < depth; k += kStep) {
        const __m512i x = r < rows ? _mm512_loadu_si512(from + r * stride + k) : __m512i{};
        _mm512_store_si512(values + r * kStride + k, x);
      }
    }
  }
};

void multiply(const BlockProduct& p) {
  const tensor::AmxTiles tiles;  // 0 to 3: sums; 4 and 5: the left factor; 6 and 7: the right one
  alignas(64) float sums[kBlock * kBlock];
  EdgeRows edge;
  if (p.rows % kBlock != 0) {
    const int64_t row = p.rows / kBlock * kBlock;
    edge.fill(p.a.data + row * p.a.row, p.a.row, p.rows - row, p.depth);
  }
  for (int64_t panel = 0; panel * kPanelColumns < p.columns; ++panel) {
    for (int64_t row = 0; row < p.rows; row += kBlock) {
      const int64_t rows = p.rows - row < kBlock ? p.rows - row : kBlock;
      const BF16* a = rows < kBlock ? edge.values : p.a.data + row * p.a.row;
      const int64_t stride = rows < kBlock ? EdgeRows::kStride : p.a.row;
      for (int64_t half = 0; half < kPanelColumns; half += kBlock) {
        const int64_t column = panel * kPanelColumns + half, left = p.columns - column;
        if (left <= 0) break;
        multiply_tiles(a, stride, p.b + panel * p.b_stride + 2 * half, p.depth, sums);
        const BlockPlace place = {row, rows, column, left < kBlock ? left : kBlock};
        p.rounded != nullptr ? round_sums(p, place, sums) : store_sums(p, place, sums);
      }
    }
  }
}

constexpr BlockProductKernels kTable = {.in_place_depth = kTileDepth,
                                        .rows_at_once = kBlock,
                                        .block_depth = kBlockDepth,
                                        .pack_panel = nullptr,
                                        .packed_rows_values = &packed_rows_values,
                                        .pack_rows = &pack_rows,
                                        .multiply = &multiply};

}  // namespace

const BlockProductKernels& block_product_kernels_amx() {
  return kTable;
}

}  // namespace reynard::ops::cpu
