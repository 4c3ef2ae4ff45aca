// The tile registers of the matrix unit (AMX), for files compiled with its instructions. Everything
// is in an unnamed namespace: each of these files has its own copy.

#include <immintrin.h>

#include <cstdint>

namespace reynard::tensor {
namespace {

// All eight tiles as 16 rows of 64 bytes, the first `num_narrow` of them narrower. Tile registers
// hold data only while a session lives: idle ones cost power and context switches.
class AmxTiles {
 public:
  explicit AmxTiles(int num_narrow = 0, int64_t narrow_bytes = 64) {
    for (int tile = 0; tile < num_narrow; ++tile) {
      configuration_.bytes_per_row[tile] = static_cast<uint16_t>(narrow_bytes);
    }
    _tile_loadconfig(&configuration_);
  }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

 private:
  // As the instruction reads it: Intel's manual, volume 1, "Tile configuration", palette 1.
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } configuration_;
};

}  // namespace
}  // namespace reynard::tensor
