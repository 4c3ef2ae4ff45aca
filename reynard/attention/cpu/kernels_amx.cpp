#include "reynard/attention/cpu/kernel_table.h"
#include "reynard/attention/cpu/tiles_bf16.h"

#include <immintrin.h>

namespace reynard::attention::cpu {

namespace {

// All eight tile registers: 16 rows of 64 bytes.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

struct TilesAmx : LayoutBf16<128, 128> {
  // Tile registers hold data only while a session lives: idle ones cost power and context switches.
  class Session {
   public:
    Session() {
      const TileConfiguration configuration;
      _tile_loadconfig(&configuration);
    }
    ~Session() { _tile_release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  // C (32 x 32 blocks in tiles 0..3) from A (tiles 4, 5) and B (tiles 6, 7): each loaded tile takes
  // part in two products, so that loads keep up with the tile unit. All sizes are multiples of 32.
  template <bool kAccumulate>
  static void multiply(Matrix<const Value> a,
                       Matrix<const Value> b,
                       Matrix<float> c,
                       int64_t rows,
                       int64_t columns,
                       int64_t depth) {
    const int64_t a_bytes = a.stride * sizeof(Value), b_bytes = b.stride * sizeof(Value);
    const int64_t c_bytes = c.stride * sizeof(float);
    for (int64_t n = 0; n < columns; n += 32) {
      for (int64_t m = 0; m < rows; m += 32) {
        float* upper = c.data + m * c.stride + n;
        float* lower = upper + 16 * c.stride;
        if constexpr (kAccumulate) {
          _tile_loadd(0, upper, c_bytes);
          _tile_loadd(1, upper + 16, c_bytes);
          _tile_loadd(2, lower, c_bytes);
          _tile_loadd(3, lower + 16, c_bytes);
        } else {
          _tile_zero(0);
          _tile_zero(1);
          _tile_zero(2);
          _tile_zero(3);
        }
        const Value* left = a.data + m * a.stride;
        const Value* right = b.data + 2 * n;
        for (int64_t k = 0; k < depth; k += 32) {
          _tile_loadd(4, left, a_bytes);
          _tile_loadd(6, right, b_bytes);
          _tile_dpbf16ps(0, 4, 6);
          _tile_loadd(7, right + 32, b_bytes);
          _tile_dpbf16ps(1, 4, 7);
          _tile_loadd(5, left + 16 * a.stride, a_bytes);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
          left += 32;
          right += 16 * b.stride;
        }
        _tile_stored(0, upper, c_bytes);
        _tile_stored(1, upper + 16, c_bytes);
        _tile_stored(2, lower, c_bytes);
        _tile_stored(3, lower + 16, c_bytes);
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
