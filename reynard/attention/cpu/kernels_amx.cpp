#include "reynard/attention/cpu/kernel_table.h"
#include "reynard/attention/cpu/tiles_bf16.h"
#include "reynard/tensor/amx_tiles.inl"

namespace reynard::attention::cpu {

namespace {

struct TilesAmx : LayoutBf16<128, 128, 32> {
  using Session = tensor::AmxTiles;
  static constexpr int64_t kMaskStep = 32;  // depth of one tile

  // Adds a 32 x 32 block of a * b to tiles 0..3, by tiles 4, 5 of a and 6, 7 of b: each loaded tile
  // takes part in two products, so that loads keep up with the tile unit.
  static inline void add_products(Matrix<const Value> a, Matrix<const Value> b, int64_t depth) {
    const int64_t a_bytes = a.stride * sizeof(Value), b_bytes = b.stride * sizeof(Value);
    for (int64_t k = 0; k < depth; k += 32) {
      _tile_loadd(4, a.data, a_bytes);
      _tile_loadd(6, b.data, b_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b.data + 32, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, a.data + 16 * a.stride, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      a.data += 32;
      b.data += 16 * b.stride;
    }
  }
  // GCC does not know that loads into tiles read memory: stores before this stay before it.
  static inline void written_by_vectors() { __asm__ volatile("" ::: "memory"); }

  static inline void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  static inline void store_sums(Matrix<float> c) {
    const int64_t c_bytes = c.stride * sizeof(float);
    _tile_stored(0, c.data, c_bytes);
    _tile_stored(1, c.data + 16, c_bytes);
    _tile_stored(2, c.data + 16 * c.stride, c_bytes);
    _tile_stored(3, c.data + 16 * c.stride + 16, c_bytes);
  }

  // Blocks of 32 columns: of sums from row m, column n on, and of a right factor.
  static inline Matrix<float> block_of(Matrix<float> c, int64_t m, int64_t n) {
    return {c.data + m * c.stride + (c.panel ? n / 32 * c.panel : n), c.stride};
  }
  static inline Matrix<const Value> right_panel(Matrix<const Value> b, int64_t n) {
    return {b.data + (b.panel ? n / 32 * b.panel : 2 * n), b.stride};
  }

  // Hands the products to body in vectors, 8 x 2 at a time. A block of 32 x 32 is on its way
  // through the tile unit while body works on the one before it.
  template <class Body>
  static inline void each_product(
      Matrix<const Value> a, Matrix<const Value> b, int64_t rows, int64_t depth, const Body& body) {
    constexpr int64_t kBlock = 32;
    alignas(64) float products[2][kBlock * kBlock];
    const int64_t num_blocks = rows / kBlock * (kQueries / kBlock);
    const auto row_of = [&](int64_t i) { return i % (rows / kBlock) * kBlock; };
    const auto column_of = [&](int64_t i) { return i / (rows / kBlock) * kBlock; };
    const auto multiply_block = [&](int64_t i) {
      zero_sums();
      add_products({a.data + row_of(i) * a.stride, a.stride}, right_panel(b, column_of(i)), depth);
      store_sums({products[i % 2], kBlock});
    };
    written_by_vectors();
    multiply_block(0);
    for (int64_t i = 0; i < num_blocks; ++i) {
      if (i + 1 < num_blocks) multiply_block(i + 1);
      for (int64_t r = 0; r < kBlock; r += 8) {
        const float* from = products[i % 2] + r * kBlock;
        Vec vectors[8][2];
#pragma GCC unroll 8
        for (int x = 0; x < 8; ++x) {
          vectors[x][0] = load(from + x * kBlock);
          vectors[x][1] = load(from + x * kBlock + kLanes);
        }
        body(row_of(i) + r, column_of(i), vectors);
      }
    }
  }

  // All sizes are multiples of 32.
  template <bool kAccumulate>
  static void multiply(Matrix<const Value> a,
                       Matrix<const Value> b,
                       Matrix<float> c,
                       int64_t rows,
                       int64_t columns,
                       int64_t depth) {
    const int64_t c_bytes = c.stride * sizeof(float);
    written_by_vectors();
    for (int64_t n = 0; n < columns; n += 32) {
      for (int64_t m = 0; m < rows; m += 32) {
        float* upper = block_of(c, m, n).data;
        float* lower = upper + 16 * c.stride;
        if constexpr (kAccumulate) {
          _tile_loadd(0, upper, c_bytes);
          _tile_loadd(1, upper + 16, c_bytes);
          _tile_loadd(2, lower, c_bytes);
          _tile_loadd(3, lower + 16, c_bytes);
        } else {
          zero_sums();
        }
        add_products({a.data + m * a.stride, a.stride}, right_panel(b, n), depth);
        store_sums({upper, c.stride});
      }
    }
  }
};

}  // namespace

const KernelTable& amx_kernels() {
  static const KernelTable table = make_kernel_table<TilesAmx>();
  return table;
}

}  // namespace reynard::attention::cpu
