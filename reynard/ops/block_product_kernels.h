#pragma once
// Loops for products of many rows of bf16 with f32 sums: packing of blocks and the product of
// packed blocks. Depth goes in blocks, in order; each block is summed from zero and then added, so
// that rounding grows with a block and not with the depth, and no bit depends on how rows and
// columns are split between threads. Plain data only: files that include this are compiled for one
// ISA.

#include <cstdint>

namespace reynard::ops {

// A matrix of bf16 bits; one of the strides is 1.
struct Factor {
  const uint16_t* data = nullptr;
  int64_t row = 0, column = 0;  // strides in elements
};

// Rows [row, row + rows) and columns [column, column + columns) of it.
struct FactorPart {
  Factor of;
  int64_t row = 0, rows = 0, column = 0, columns = 0;
};

inline constexpr int64_t kPanelColumns = 64;    // of a packed right factor
inline constexpr int64_t kLeftBlockRows = 128;  // most rows of a left factor at a time
inline constexpr int64_t kLeftGroupRows = 4;    // of a left factor that are multiplied together

// Pairs of values along the depth of rows of a left factor, each read as one number: strides
// between groups of kLeftGroupRows rows, between the rows of a group, and between pairs.
struct LeftRows {
  const uint16_t* data = nullptr;
  int64_t group = 0, row = 0, pair = 0;
};

// One block of depth of c += a b.
struct BlockProduct {
  LeftRows a;
  const uint16_t* b = nullptr;  // panels, as pack_panel makes them; b_stride values apart
  int64_t b_stride = 0;
  int64_t rows = 0, columns = 0, depth = 0;  // depth: see in_place_depth
  float* c = nullptr;                        // (rows, columns), rows c_stride apart
  int64_t c_stride = 0;
  bool add = false;  // to what c holds; else c is overwritten
  // The last block of depth of a result in bf16: the sums are rounded once, into this instead of c.
  uint16_t* rounded = nullptr;  // (rows, columns), rows rounded_stride apart
  int64_t rounded_stride = 0;
  bool add_rounded = false;  // to what it holds
};

struct BlockProductKernels {
  // A left factor whose rows are contiguous is read where it lies if its depth is a multiple of
  // this.
  int64_t in_place_depth = 0;
  int64_t rows_at_once = 0;  // of a left factor
  int64_t block_depth = 0;   // most of the depth at a time, a multiple of 32
  // At most kPanelColumns columns of a right factor as pairs of rows side by side:
  // [depth / 2][kPanelColumns][2], zeros beyond the edges. depth: rows rounded up to a multiple of
  // 32.
  void (*pack_panel)(const FactorPart& b, int64_t depth, uint16_t* packed);
  // At most kLeftBlockRows rows of a left factor, with zeros up to `depth`, columns rounded up in
  // the same way: where they then lie, and for how many values there must be space.
  int64_t (*packed_rows_values)(int64_t rows, int64_t depth);
  LeftRows (*pack_rows)(const FactorPart& a, int64_t depth, uint16_t* packed);
  void (*multiply)(const BlockProduct& product);
};

namespace cpu {
const BlockProductKernels& block_product_kernels_avx512_bf16();
const BlockProductKernels& block_product_kernels_amx();  // without pack_panel
}  // namespace cpu

}  // namespace reynard::ops
