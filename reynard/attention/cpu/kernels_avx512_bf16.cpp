#include "reynard/attention/cpu/kernel_table.h"
#include "reynard/attention/cpu/tiles_bf16.h"

#include <immintrin.h>

namespace reynard::attention::cpu {

namespace {

struct TilesAvx512Bf16 : LayoutBf16<64, 256, 64> {
  struct Session {};                      // nothing to set up per thread
  static_assert(kQueries == 4 * kLanes);  // one micro-tile wide

  // Adds a * b to kRows x kVectors sums in registers: 16 hide the latency of 6 cycles at two
  // vdpbf16ps a cycle.
  template <int kRows, int kVectors>
  static inline void add_products(Vec (&sums)[kRows][kVectors],
                                  Matrix<const Value> a,
                                  Matrix<const Value> b,
                                  int64_t depth) {
#pragma GCC unroll 2
    for (int64_t k = 0; k < depth; k += 2) {
      __m512i row[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        row[v] = _mm512_load_si512(b.data + k / 2 * b.stride + v * 2 * kLanes);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        int32_t pair;
        memcpy(&pair, a.data + r * a.stride + k, sizeof(pair));
        const __m512i x = _mm512_set1_epi32(pair);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)x, (__m512bh)row[v]);
        }
      }
    }
  }

  template <int kRows, int kVectors, bool kAccumulate>
  static inline void multiply_tile(Matrix<const Value> a,
                                   Matrix<const Value> b,
                                   Matrix<float> c,
                                   int64_t depth) {
    Vec sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = kAccumulate ? load(c.data + r * c.stride + v * kLanes) : Vec{};
      }
    }
    add_products(sums, a, b, depth);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) store(c.data + r * c.stride + v * kLanes, sums[r][v]);
    }
  }

  // Hands each micro-tile of a * b to body while it is in registers.
  template <class Body>
  static inline void each_product(
      Matrix<const Value> a, Matrix<const Value> b, int64_t rows, int64_t depth, const Body& body) {
    for (int64_t m = 0; m < rows; m += 4) {
      Vec sums[4][4] = {};
      add_products(sums, {a.data + m * a.stride, a.stride}, b, depth);
      body(m, 0, sums);
    }
  }

  // rows is a multiple of 4, columns of 32, depth of 2.
  template <bool kAccumulate>
  static void multiply(Matrix<const Value> a,
                       Matrix<const Value> b,
                       Matrix<float> c,
                       int64_t rows,
                       int64_t columns,
                       int64_t depth) {
    for (int64_t n = 0; n < columns;) {
      const bool wide = n + 4 * kLanes <= columns;
      for (int64_t m = 0; m < rows; m += 4) {
        const Matrix<const Value> left{a.data + m * a.stride, a.stride};
        const Matrix<const Value> right{b.data + 2 * n, b.stride};
        const Matrix<float> sum{c.data + m * c.stride + n, c.stride};
        if (wide) {
          multiply_tile<4, 4, kAccumulate>(left, right, sum, depth);
        } else {
          multiply_tile<4, 2, kAccumulate>(left, right, sum, depth);
        }
      }
      n += wide ? 4 * kLanes : 2 * kLanes;
    }
  }
};

}  // namespace

const KernelTable& avx512_bf16_kernels() {
  static const KernelTable table = make_kernel_table<TilesAvx512Bf16>();
  return table;
}

}  // namespace reynard::attention::cpu
