#pragma once
// Tile arithmetic in f32 on plain vectors: packing of any input type and the matrix product that
// all five products of attention go through. The kernels in forward.h and backward.h are written
// over such a struct; its sibling for bf16 is tiles_bf16.h.
//
//   C (M x N) = A (M x K) * B (K x N): elements of A are broadcast, rows of B and C are vectors.

#include "reynard/attention/cpu/vector.h"
#include "reynard/attention/cpu/visibility.h"

#include <cstdint>
#include <cstring>

namespace reynard::attention::cpu {
namespace {

// Micro-tile of rows x vectors of C held in registers: enough independent sums to hide the latency
// of multiply-add (4 cycles x 2 units), few enough for 32 (AVX-512) or 16 registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 4, kTileVectors = 4;
#elif defined(__AVX2__)
constexpr int kTileRows = 6, kTileVectors = 2;
#else
constexpr int kTileRows = 4, kTileVectors = 2;
#endif

// Longest sum of products before it is added to the rest; shorter where products are rounded too.
#if defined(__FMA__)
constexpr int64_t kDepthOfSum = 64;
#else
constexpr int64_t kDepthOfSum = 8;
#endif

// Adds A * B to kRows rows and kVectors vectors of sums, no more than kDepthOfSum at once.
template <int kRows, int kVectors>
inline void add_short_products(Vec (&sums)[kRows][kVectors],
                               Matrix<const float> a,
                               Matrix<const float> b,
                               int64_t depth) {
  for (int64_t k = 0; k < depth; ++k) {
    Vec row[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row[v] = load(b.data + k * b.stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec x = splat(a.data[r * a.stride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] += x * row[v];
    }
  }
}

// sums = A * B: sums of kDepthOfSum products, added up.
template <int kRows, int kVectors>
inline void sum_products(Vec (&sums)[kRows][kVectors],
                         Matrix<const float> a,
                         Matrix<const float> b,
                         int64_t depth) {
  memset(sums, 0, sizeof(sums));
  add_short_products(sums, a, b, min_of(kDepthOfSum, depth));
  for (int64_t k = kDepthOfSum; k < depth; k += kDepthOfSum) {
    Vec part[kRows][kVectors] = {};
    add_short_products(part,
                       {a.data + k, a.stride},
                       {b.data + k * b.stride, b.stride},
                       min_of(kDepthOfSum, depth - k));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] += part[r][v];
    }
  }
}

// C = A * B, or C += A * B, for kRows rows and kVectors vectors of C. The product is summed from
// zero and then added to C: rounding errors grow with the depth of one product, not with T.
template <int kRows, int kVectors, bool kAccumulate>
inline void multiply_tile(Matrix<const float> a,
                          Matrix<const float> b,
                          Matrix<float> c,
                          int64_t depth) {
  Vec sums[kRows][kVectors];
  sum_products(sums, a, b, depth);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      float* to = c.data + r * c.stride + v * kLanes;
      store(to, kAccumulate ? load(to) + sums[r][v] : sums[r][v]);
    }
  }
}

// One column of micro-tiles, kVectors wide: full tiles, then the rest row by row count.
template <int kVectors, bool kAccumulate>
inline void multiply_columns(
    Matrix<const float> a, Matrix<const float> b, Matrix<float> c, int64_t rows, int64_t depth) {
  int64_t m = 0;
  const auto tile = [&]<int kRows>() {
    multiply_tile<kRows, kVectors, kAccumulate>(
        {a.data + m * a.stride, a.stride}, b, {c.data + m * c.stride, c.stride}, depth);
    m += kRows;
  };
  while (m + kTileRows <= rows) tile.template operator()<kTileRows>();
  if (m + 4 <= rows) tile.template operator()<4>();
  if (m + 2 <= rows) tile.template operator()<2>();
  if (m + 1 <= rows) tile.template operator()<1>();
}

struct TilesF32 {
  using Value = float;
  static constexpr int64_t kQueries = 64;  // S^T of a block and a chunk of P stay in the L1 cache
  static constexpr int64_t kKeys = 64;
  static constexpr int64_t kPanel = kQueries;
  static constexpr int64_t kKeyStep = 4;  // spans of keys within a block are multiples of this
  static constexpr int64_t kMaskStep =
      16;  // queries, and keys of dQ: edges are worked on in steps of it
  static constexpr int kExpDegree = 6;

  // P as the left factor [key][query] and as the right factor are the same array.
  static constexpr bool kSharedLayout = true;
  static constexpr int64_t kForwardKeys = kKeys;
  static constexpr bool kSumsBesideWeights = false;
  static constexpr bool kPairsOfProducts = false;

  struct Session {};  // nothing to set up per thread

  static int64_t padded(int64_t head_dim) { return round_up(head_dim, 16); }

  // Matrices that multiply reads as A: [row][column], values of any input type.
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
      for (int64_t d = 0; d < filled; ++d) to[d] = to_float(from[d]);
      for (int64_t d = filled; d < padded_dim; ++d) to[d] = 0;
    }
  }

  // The transpose: [d][row], rows in the lanes.
  template <class Source>
  static void pack_columns(const Source* rows,
                           int64_t row_stride,
                           int64_t num_rows,
                           int64_t head_dim,
                           Value* packed,
                           int64_t packed_rows) {
    const int64_t padded_dim = padded(head_dim);
    constexpr int64_t kBlock = 16;  // a cache line of the output at a time
    for (int64_t d0 = 0; d0 < padded_dim; d0 += kBlock) {
      for (int64_t r = 0; r < packed_rows; ++r) {
        const int64_t filled = r < num_rows ? max_of(0, min_of(kBlock, head_dim - d0)) : 0;
        const Source* from = rows + r * row_stride + d0;
        Value* to = packed + d0 * packed_rows + r;
        for (int64_t d = 0; d < filled; ++d) to[d * packed_rows] = to_float(from[d]);
        for (int64_t d = filled; d < kBlock; ++d) to[d * packed_rows] = 0;
      }
    }
  }

  // Matrices that multiply reads as B: with queries in the lanes, [d][query] ...
  template <class Source>
  static void pack_query_lanes(
      const Source* rows, int64_t row_stride, int64_t num_rows, int64_t head_dim, Value* packed) {
    pack_columns(rows, row_stride, num_rows, head_dim, packed, kQueries);
  }
  // ... and with dimensions in the lanes, [query][d].
  template <class Source>
  static void pack_query_rows(
      const Source* rows, int64_t row_stride, int64_t num_rows, int64_t head_dim, Value* packed) {
    pack_rows(rows, row_stride, num_rows, head_dim, packed, kQueries);
  }

  // Stride of a right factor with this many columns.
  static int64_t right_stride(int64_t columns) { return columns; }

  // Two keys' weights of one vector of queries as rows j, j + 1 of a right factor.
  static void store_right(Value* weights, int64_t j, int64_t q, Vec even, Vec odd) {
    store(weights + j * kQueries + q, even);
    store(weights + (j + 1) * kQueries + q, odd);
  }
  // Rows [j, j + count) and `queries` columns from q on of the right factor.
  static void zero_right(Value* weights, int64_t j, int64_t count, int64_t q, int64_t queries) {
    for (int64_t row = j; row < j + count; ++row) {
      memset(weights + row * kQueries + q, 0, queries * sizeof(Value));
    }
  }
  // The same as rows of a left factor.
  static void store_left(Value* weights, int64_t j, int64_t q, Vec even, Vec odd) {
    store_right(weights, j, q, even, odd);
  }

  // Hands each micro-tile of a * b, kQueries wide, to body while it is in registers. rows is a
  // multiple of 4.
  template <class Body>
  static inline void each_product(
      Matrix<const Value> a, Matrix<const Value> b, int64_t rows, int64_t depth, const Body& body) {
    for (int64_t n = 0; n < kQueries; n += kTileVectors * kLanes) {
      for (int64_t m = 0; m < rows; m += 4) {
        Vec sums[4][kTileVectors];
        sum_products(sums, {a.data + m * a.stride, a.stride}, {b.data + n, b.stride}, depth);
        body(m, n, sums);
      }
    }
  }

  // columns is a multiple of 16.
  template <bool kAccumulate>
  static void multiply(Matrix<const Value> a,
                       Matrix<const Value> b,
                       Matrix<float> c,
                       int64_t rows,
                       int64_t columns,
                       int64_t depth) {
    int64_t n = 0;
    const auto column = [&]<int kVectors>() {
      multiply_columns<kVectors, kAccumulate>(
          a, {b.data + n, b.stride}, {c.data + n, c.stride}, rows, depth);
      n += kVectors * kLanes;
    };
    while (n + kTileVectors * kLanes <= columns) column.template operator()<kTileVectors>();
    while (n < columns) column.template operator()<1>();
  }
};

}  // namespace
}  // namespace reynard::attention::cpu
