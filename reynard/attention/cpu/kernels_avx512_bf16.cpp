#include "reynard/attention/cpu/kernel_table.h"
#include "reynard/attention/cpu/tiles_bf16.h"

#include <immintrin.h>

namespace reynard::attention::cpu {

namespace {

struct TilesAvx512Bf16 : LayoutBf16<64, 256, 64, 16> {
  struct Session {};                      // nothing to set up per thread
  static_assert(kQueries == 4 * kLanes);  // one micro-tile wide
  static constexpr int64_t kMaskStep =
      16;  // queries, and keys of dQ: edges are worked on in steps of it
  static constexpr int kExpDegree = 2;  // its multiplications are what takes time from products

  // Adds a * b to kRows x kVectors sums in registers: 16 hide the latency of 6 cycles at two
  // vdpbf16ps a cycle.
  template <int kRows, int kVectors>
  static inline __attribute__((always_inline)) void add_products(Vec (&sums)[kRows][kVectors],
                                                                 Matrix<const Value> a,
                                                                 Matrix<const Value> b,
                                                                 int64_t depth) {
#pragma GCC unroll 4
    for (int64_t pair = 0; pair < depth / 2; ++pair) {
      __m512i row[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        row[v] = _mm512_load_si512(b.data + pair * b.stride + v * 2 * kLanes);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        int32_t left;
        memcpy(&left, a.data + r * a.stride + 2 * pair, sizeof(left));
        const __m512i x = _mm512_set1_epi32(left);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)x, (__m512bh)row[v]);
        }
      }
    }
  }

  template <int kRows, int kVectors, bool kAccumulate>
  static inline __attribute__((always_inline)) void multiply_tile(Matrix<const Value> a,
                                                                  Matrix<const Value> b,
                                                                  Matrix<float> c,
                                                                  int64_t depth) {
    Vec sums[kRows][kVectors];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = kAccumulate ? load(c.data + r * c.stride + v * kLanes) : Vec{};
      }
    }
    add_products(sums, a, b, depth);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) store(c.data + r * c.stride + v * kLanes, sums[r][v]);
    }
  }

  // kRows rows and kVectors vectors of a * b into `products` [row][query]. between(n) is called
  // before the n-th of kParts parts of the depth, `part` long each.
  template <int kParts, int kRows = 4, int kVectors = 4, class Between>
  static inline __attribute__((always_inline)) void multiply_rows(Matrix<const Value> a,
                                                                  Matrix<const Value> b,
                                                                  int64_t part,
                                                                  float* products,
                                                                  const Between& between) {
    Vec sums[kRows][kVectors] = {};
#pragma GCC unroll 8
    for (int n = 0; n < kParts; ++n) {
      between(n);
      add_products(
          sums, {a.data + n * part, a.stride}, {b.data + n * part / 2 * b.stride, b.stride}, part);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        store(products + (r * kVectors + v) * kLanes, sums[r][v]);
      }
    }
  }
  static constexpr auto kNothingBetween = [](int) {};

  // Two rows, `stride` apart, of kVectors vectors of products.
  template <int kVectors>
  static inline void load_piece(const float* products, int64_t stride, Vec (&piece)[2][kVectors]) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      piece[0][v] = load(products + v * kLanes);
      piece[1][v] = load(products + stride + v * kLanes);
    }
  }

  // Hands the products to body in pieces of two rows of one vector. The pieces of a micro-tile are
  // dealt out between the products of the next one: what body does with them then runs beside
  // vdpbf16ps, where all of it after a whole tile leaves the multiplying units waiting. kPart is an
  // eighth of the depth, or 0.
  template <int64_t kPart, class Body>
  static inline void each_product_in_parts(
      Matrix<const Value> a, Matrix<const Value> b, int64_t rows, int64_t depth, const Body& body) {
    constexpr int kPieces = 8;
    const int64_t part = kPart ? kPart : depth / kPieces;
    if constexpr (kPart) {
      a.stride = kPart * kPieces;
      b.stride = right_stride(kPanel);
    }
    alignas(64) float products[2][4 * kQueries];
    const auto hand_over = [&](int64_t m, int n) __attribute__((always_inline)) {
      const int row = n / 4 * 2, lane = n % 4 * kLanes;
      Vec piece[2][1];
      load_piece(products[m / 4 % 2] + row * kQueries + lane, kQueries, piece);
      body(m + row, lane, piece);
    };
    multiply_rows<kPieces>(a, b, part, products[0], kNothingBetween);
    for (int64_t m = 4; m < rows; m += 4) {
      multiply_rows<kPieces>(
          {a.data + m * a.stride, a.stride},
          b,
          part,
          products[m / 4 % 2],
          [&](int n) __attribute__((always_inline)) { hand_over(m - 4, n); });
    }
    for (int n = 0; n < kPieces; ++n) hand_over(rows - 4, n);
  }

  // rows is a multiple of 4, depth of 16.
  template <class Body>
  static inline void each_product(
      Matrix<const Value> a, Matrix<const Value> b, int64_t rows, int64_t depth, const Body& body) {
    switch (depth) {
      case 64:
        return each_product_in_parts<8>(a, b, rows, depth, body);
      case 128:
        return each_product_in_parts<16>(a, b, rows, depth, body);
      default:
        return each_product_in_parts<0>(a, b, rows, depth, body);
    }
  }

  // The same for rows [begin, end), multiples of 8, of two products of one shape at once, in pieces
  // of two rows of two vectors of each. With kHalf they have 32 columns instead of 64, and
  // micro-tiles twice the rows.
  static constexpr bool kPairsOfProducts = true;
  struct Product {
    Matrix<const Value> left, right;
  };
  template <bool kHalf, class Body>
  static inline void each_pair_of_products(
      Product first, Product second, int64_t begin, int64_t end, int64_t depth, const Body& body) {
    if constexpr (!kHalf) {
      if (depth == 64) {
        return each_pair_of_depth<kHalf, 64>(first, second, begin, end, depth, body);
      }
      if (depth == 128) {
        return each_pair_of_depth<kHalf, 128>(first, second, begin, end, depth, body);
      }
    }
    each_pair_of_depth<kHalf, 0>(first, second, begin, end, depth, body);
  }

  // kDepth is the depth, or 0: with strides that are known the loops take a fifth fewer
  // instructions.
  template <bool kHalf, int64_t kDepth, class Body>
  static inline void each_pair_of_depth(
      Product first, Product second, int64_t begin, int64_t end, int64_t depth, const Body& body) {
    if constexpr (kDepth) {
      depth = first.left.stride = second.left.stride = kDepth;
      first.right.stride = second.right.stride = right_stride(kPanel);
    }
    constexpr int kVectors = kHalf ? 2 : 4, kRows = 16 / kVectors, kAcross = kVectors / 2;
    alignas(64) float products[2][2][16 * kLanes];
    const auto hand_over = [&](int64_t m, int n) __attribute__((always_inline)) {
      const int row = n / kAcross * 2, lane = n % kAcross * 2 * kLanes;
      const int at = row * kVectors * kLanes + lane;
      Vec pieces[2][2][2];
      load_piece(products[m / kRows % 2][0] + at, kVectors * kLanes, pieces[0]);
      load_piece(products[m / kRows % 2][1] + at, kVectors * kLanes, pieces[1]);
      body(m + row, lane, pieces[0], pieces[1]);
    };
    const auto multiply = [&](int64_t m, const auto& between0, const auto& between1)
        __attribute__((always_inline)) {
      auto& to = products[m / kRows % 2];
      const int64_t part = depth / 2;
      const auto rows = [&](const Matrix<const Value>& left) __attribute__((always_inline)) {
        return Matrix<const Value>{left.data + m * left.stride, left.stride};
      };
      multiply_rows<2, kRows, kVectors>(rows(first.left), first.right, part, to[0], between0);
      multiply_rows<2, kRows, kVectors>(rows(second.left), second.right, part, to[1], between1);
    };
    multiply(begin, kNothingBetween, kNothingBetween);
    for (int64_t m = begin + kRows; m < end; m += kRows) {
      multiply(
          m,
          [&](int n) __attribute__((always_inline)) { hand_over(m - kRows, n); },
          [&](int n) __attribute__((always_inline)) { hand_over(m - kRows, 2 + n); });
    }
    for (int n = 0; n < 4; ++n) hand_over(end - kRows, n);
  }

  // rows is a multiple of 4, columns of 16, depth of 2.
  template <bool kAccumulate>
  static void multiply(Matrix<const Value> a,
                       Matrix<const Value> b,
                       Matrix<float> c,
                       int64_t rows,
                       int64_t columns,
                       int64_t depth) {
    const auto strided = [&]<int64_t kLeft, int64_t kRight>() {
      multiply_strided<kAccumulate, kLeft, kRight>(a, b, c, rows, columns, depth);
    };
    if (a.stride == kKeys && b.stride == right_stride(kPanel)) {
      strided.template operator()<kKeys, 2 * kPanel>();  // V^T P, K^T dS
    } else if (a.stride == kQueries && b.stride == right_stride(64)) {
      strided.template operator()<kQueries, 2 * 64>();  // P^T dO, dS^T Q
    } else if (a.stride == kQueries && b.stride == right_stride(128)) {
      strided.template operator()<kQueries, 2 * 128>();
    } else {
      strided.template operator()<0, 0>();
    }
  }

  // kLeft and kRight are the strides of a and b, or 0: known ones save a sixth of the instructions.
  template <bool kAccumulate, int64_t kLeft, int64_t kRight>
  static inline void multiply_strided(Matrix<const Value> a,
                                      Matrix<const Value> b,
                                      Matrix<float> c,
                                      int64_t rows,
                                      int64_t columns,
                                      int64_t depth) {
    if constexpr (kLeft) {
      a.stride = kLeft;
      b.stride = kRight;
    }
    const auto columns_of = [&]<int kRows, int kVectors>(int64_t n) {
      for (int64_t m = 0; m < rows; m += kRows) {
        multiply_tile<kRows, kVectors, kAccumulate>({a.data + m * a.stride, a.stride},
                                                    {b.data + 2 * n, b.stride},
                                                    {c.data + m * c.stride + n, c.stride},
                                                    depth);
      }
    };
    int64_t n = 0;
    for (; n + 4 * kLanes <= columns; n += 4 * kLanes) {
      columns_of.template operator()<4, 4>(n);
    }
    for (; n + 2 * kLanes <= columns; n += 2 * kLanes) {
      columns_of.template operator()<4, 2>(n);
    }
    if (n == columns) return;
    if (rows % 16 == 0) {
      columns_of.template operator()<16, 1>(n);
    } else {
      columns_of.template operator()<4, 1>(n);
    }
  }
};

}  // namespace

const KernelTable& avx512_bf16_kernels() {
  static const KernelTable table = make_kernel_table<TilesAvx512Bf16>();
  return table;
}

}  // namespace reynard::attention::cpu
