// Products of few rows of bf16 with weights of bf16 or int8 by tiles of the matrix unit. The weight
// is the left factor, so its rows are read where they lie; rows of x become columns, packed once
// per call. For one row of x memory bounds this as it does the loops of product_kernels.inl; for
// sixteen the products cost no more than for one, where those loops would be bound by arithmetic.
// Each sum goes through the depth in one order, whatever the other rows of x and of the weight.

#include "reynard/ops/product_kernels.h"
#include "reynard/tensor/amx_tiles.inl"
#include "reynard/tensor/div_up.h"

namespace reynard::ops::cpu {

namespace {

using tensor::div_up;

using BF16 = uint16_t;

constexpr int64_t kTileRows = 16;               // of a weight; also f32 columns of a tile of sums
constexpr int64_t kTileDepth = 32;              // bf16 values in 64 bytes
constexpr int64_t kRowsAtOnce = 2 * kTileRows;  // two chains of sums hide part of their latency
// How far ahead rows of a weight are asked for: hardware does not guess 32 rows at once.
constexpr int64_t kAheadBytes = 256;

inline int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

constexpr int64_t kTileValues = kTileRows * kTileDepth;

// [16 tokens][32 of the depth][pair of the depth][token][2]. Columns without a token are left as
// they are: nobody reads their sums.
int64_t packed_bytes(int64_t tokens, int64_t width) {
  return div_up(tokens, kTileRows) * div_up(width, kTileDepth) * kTileValues *
         static_cast<int64_t>(sizeof(BF16));
}

void pack(const ProductRows& p, void* packed) {
  const int64_t blocks = div_up(p.width, kTileDepth);
  for (int64_t token = 0; token < p.tokens; ++token) {
    const BF16* x = static_cast<const BF16*>(p.x) + token * p.width;
    BF16* to = static_cast<BF16*>(packed) + token / kTileRows * blocks * kTileValues +
               token % kTileRows * 2;
    int64_t d = 0;
    for (; d + 1 < p.width; d += 2, to += kTileDepth) __builtin_memcpy(to, x + d, 2 * sizeof(BF16));
    for (; d < blocks * kTileDepth; d += 2, to += kTileDepth) {
      to[0] = d < p.width ? x[d] : 0;
      to[1] = 0;
    }
  }
}

// Where a tile of the weight is loaded from.
struct TileSource {
  const BF16* data;
  int64_t row_bytes;
};

inline TileSource tile_of(const BF16* weight, int64_t width, BF16* /*widened*/) {
  return {weight, width * static_cast<int64_t>(sizeof(BF16))};
}
// Values of 8 bits are exact in bf16.
inline TileSource tile_of(const int8_t* weight, int64_t width, BF16* widened) {
  for (int64_t r = 0; r < kTileRows; ++r) {
    const auto* from = reinterpret_cast<const __m128i*>(weight + r * width);
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from + 1)));
    const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
    __builtin_memcpy(widened + r * kTileDepth, &both, sizeof both);
  }
  return {widened, kTileDepth * static_cast<int64_t>(sizeof(BF16))};
}

struct Scratch {
  alignas(64) BF16 edge[2][kTileValues];     // as the weight, zeros where it has ended
  alignas(64) BF16 widened[2][kTileValues];  // of int8
  alignas(64) float sums[kTileRows * kTileRows];
};

// The tile at (row, d) of a weight, which may end inside it.
template <class W>
inline TileSource tile_at(
    const ProductRows& p, int64_t row, int64_t rows, int64_t d, int index, Scratch& s) {
  const W* from = static_cast<const W*>(p.weight) + row * p.width + d;
  if (rows >= kTileRows && d + kTileDepth <= p.width) {
    return tile_of(from, p.width, s.widened[index]);
  }
  auto* edge = reinterpret_cast<W*>(s.edge[index]);
  for (int64_t r = 0; r < kTileRows; ++r) {
    for (int64_t i = 0; i < kTileDepth; ++i) {
      edge[r * kTileDepth + i] = r < rows && d + i < p.width ? from[r * p.width + i] : W{0};
    }
  }
  return tile_of(edge, kTileDepth, s.widened[index]);
}

// Asks for what the loop reads soon: these rows further on, or the next ones.
template <class W>
inline void prefetch(const ProductRows& p, int64_t row, int64_t rows, int64_t d) {
  constexpr int64_t kAhead = kAheadBytes / sizeof(W);
  const bool next = d + kAhead >= p.width;
  const int64_t first = next ? row + kRowsAtOnce : row;
  const W* from =
      static_cast<const W*>(p.weight) + first * p.width + d + (next ? kAhead - p.width : kAhead);
  for (int64_t r = 0; r < rows; ++r) __builtin_prefetch(from + r * p.width);
}

template <class W>
inline void store_sums(const ProductRows& p, int64_t row, int64_t rows, int64_t token, Scratch& s) {
  const __m512i lanes =
      _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
  const auto mask = static_cast<__mmask16>((1U << least(rows, kTileRows)) - 1);
  const int64_t tokens = least(p.tokens - token, kTileRows);
  for (int64_t t = 0; t < tokens; ++t) {
    __m512 sums = _mm512_i32gather_ps(lanes, s.sums + t, sizeof(float));
    if constexpr (sizeof(W) == 1) sums *= _mm512_maskz_loadu_ps(mask, p.scales + row);
    const int64_t to = (token + t) * p.rows + row;
    if (p.y_is_f32) {
      _mm512_mask_storeu_ps(static_cast<float*>(p.y) + to, mask, sums);
      continue;
    }
    const __m256bh rounded = _mm512_cvtneps_pbh(sums);
    __m256i bits;
    __builtin_memcpy(&bits, &rounded, sizeof bits);
    _mm256_mask_storeu_epi16(static_cast<BF16*>(p.y) + to, mask, bits);
  }
}

// Tile loads read memory behind the compiler's back: stores must not move past them.
inline void finish_stores() {
  asm volatile("" ::: "memory");
}

// Rows [row, row + rows), at most 32, for all of at most 32 rows of x.
template <bool kTwoRows, bool kTwoTokens, class W>
inline void product_block(const ProductRows& p, int64_t row, int64_t rows, Scratch& s) {
  const int64_t blocks = div_up(p.width, kTileDepth);
  const auto* x = static_cast<const BF16*>(p.packed);
  const BF16* more_x = x + blocks * kTileValues;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t n = 0; n < blocks; ++n) {
    const int64_t d = n * kTileDepth;
    prefetch<W>(p, row, rows, d);
    _tile_loadd(6, x + n * kTileValues, 64);
    if constexpr (kTwoTokens) _tile_loadd(7, more_x + n * kTileValues, 64);
    const TileSource upper = tile_at<W>(p, row, rows, d, 0, s);
    finish_stores();
    _tile_loadd(4, upper.data, upper.row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoTokens) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwoRows) {
      const TileSource lower = tile_at<W>(p, row + kTileRows, rows - kTileRows, d, 1, s);
      finish_stores();
      _tile_loadd(5, lower.data, lower.row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kTwoTokens) _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, s.sums, 64);
  store_sums<W>(p, row, rows, 0, s);
  if constexpr (kTwoTokens) {
    _tile_stored(1, s.sums, 64);
    store_sums<W>(p, row, rows, kTileRows, s);
  }
  if constexpr (kTwoRows) {
    _tile_stored(2, s.sums, 64);
    store_sums<W>(p, row + kTileRows, rows - kTileRows, 0, s);
    if constexpr (kTwoTokens) {
      _tile_stored(3, s.sums, 64);
      store_sums<W>(p, row + kTileRows, rows - kTileRows, kTileRows, s);
    }
  }
}

template <class W>
void product_rows(const ProductRows& p, int64_t begin, int64_t end) {
  const tensor::AmxTiles tiles;  // 0 to 3: sums; 4 and 5: the weight; 6 and 7: x
  Scratch s;
  const bool two_tokens = p.tokens > kTileRows;
  for (int64_t row = begin; row < end; row += kRowsAtOnce) {
    const int64_t rows = least(end - row, kRowsAtOnce);
    if (rows > kTileRows) {
      two_tokens ? product_block<true, true, W>(p, row, rows, s)
                 : product_block<true, false, W>(p, row, rows, s);
    } else {
      two_tokens ? product_block<false, true, W>(p, row, rows, s)
                 : product_block<false, false, W>(p, row, rows, s);
    }
  }
}

constexpr ProductKernels kTable = {.bf16_by_bf16 = &product_rows<BF16>,
                                   .bf16_by_int8 = &product_rows<int8_t>,
                                   .packed_bytes = &packed_bytes,
                                   .pack = &pack};

}  // namespace

const ProductKernels& product_kernels_amx() {
  return kTable;
}

}  // namespace reynard::ops::cpu
