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
// of multiply-add (4 cycles x 2 units), few enough for the registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 4, kTileVectors = 4, kRegisters = 32;
#elif defined(__AVX2__)
constexpr int kTileRows = 6, kTileVectors = 2, kRegisters = 16;
#else
constexpr int kTileRows = 4, kTileVectors = 2, kRegisters = 16;
#endif

// Longest sum of products before it is added to the rest; shorter where products are rounded too.
#if defined(__FMA__)
constexpr int64_t kDepthOfSum = 64;
#else
constexpr int64_t kDepthOfSum = 8;
#endif

// Rows of B that a column of micro-tiles goes through at once. They are 256 bytes apart: of columns
// that are narrower, more rows would not fit into the few sets of the first-level cache they share.
#if defined(__AVX512F__)
constexpr int64_t kDepthOfPass = INT64_MAX;
#else
constexpr int64_t kDepthOfPass = 64;
#endif

// Adds A * B to kRows rows and kVectors vectors of sums, no more than kDepthOfSum at once. Inlined,
// like its caller: sums behind a reference would be kept in memory.
template <int kRows, int kVectors>
inline __attribute__((always_inline)) void add_short_products(Vec (&sums)[kRows][kVectors],
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
inline __attribute__((always_inline)) void sum_products(Vec (&sums)[kRows][kVectors],
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

// Calls tile<kRows>(first row) for micro-tiles that cover `rows` rows, a multiple of kStep: full
// ones, then the rest.
template <int kStep, class Tile>
inline void each_row_tile(int64_t rows, const Tile& tile) {
  int64_t m = 0;
  const auto next = [&]<int kRows>() {
    tile.template operator()<kRows>(m);
    m += kRows;
  };
  while (m + kTileRows <= rows) next.template operator()<kTileRows>();
  if constexpr (kTileRows > 4) {
    if (m + 4 <= rows) next.template operator()<4>();
  }
  if constexpr (kStep <= 2) {
    if (m + 2 <= rows) next.template operator()<2>();
  }
  if constexpr (kStep == 1) {
    if (m + 1 <= rows) next.template operator()<1>();
  }
}

// One column of micro-tiles, kVectors wide.
template <int kVectors, bool kAccumulate>
inline void multiply_columns(
    Matrix<const float> a, Matrix<const float> b, Matrix<float> c, int64_t rows, int64_t depth) {
  const auto pass = [&]<bool kAdd>(int64_t k) {
    each_row_tile<1>(rows, [&]<int kRows>(int64_t m) {
      multiply_tile<kRows, kVectors, kAdd>({a.data + m * a.stride + k, a.stride},
                                           {b.data + k * b.stride, b.stride},
                                           {c.data + m * c.stride, c.stride},
                                           min_of(kDepthOfPass, depth - k));
    });
  };
  pass.template operator()<kAccumulate>(0);
  for (int64_t k = kDepthOfPass; k < depth; k += kDepthOfPass) pass.template operator()<true>(k);
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

  // Hands each micro-tile of a * b, kQueries wide, to body. rows is a multiple of 4.
  template <class Body>
  static inline void each_product(
      Matrix<const Value> a, Matrix<const Value> b, int64_t rows, int64_t depth, const Body& body) {
    for (int64_t n = 0; n < kQueries; n += kTileVectors * kLanes) {
      each_row_tile<kTileRows == 4 ? 4 : 2>(rows, [&]<int kRows>(int64_t m) {
        Vec sums[kRows][kTileVectors];
        const Matrix<const Value> a_rows = {a.data + m * a.stride, a.stride};
        const Matrix<const Value> b_columns = {b.data + n, b.stride};
        if constexpr (kRegisters == 32) {
          sum_products(sums, a_rows, b_columns, depth);
        } else {
          store_products(a_rows, b_columns, depth, sums);
        }
        body(m, n, sums);
      });
    }
  }

  // The sums of a micro-tile to memory. Not inlined: next to what follows, 16 registers would not
  // hold them.
  template <int kRows>
  static __attribute__((noinline)) void store_products(Matrix<const Value> a,
                                                       Matrix<const Value> b,
                                                       int64_t depth,
                                                       Vec (&sums)[kRows][kTileVectors]) {
    multiply_tile<kRows, kTileVectors, false>(
        a, b, {reinterpret_cast<float*>(sums), kTileVectors * kLanes}, depth);
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
