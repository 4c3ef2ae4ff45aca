#pragma once
// Loops for products of few rows of activations with whole weights, compiled once per instruction
// set. Each function computes the rows [begin, end) of a weight for all rows of x, so that callers
// may split a weight between threads; no result depends on the split, nor on how many rows of x
// there are. Plain data only: files that include this are compiled for one ISA. Elements are f32,
// bf16 (its bits as uint16_t) or int8, sums f32.

#include <cstdint>

namespace reynard::ops {

// y = x W^T.
struct ProductRows {
  const void* x = nullptr;        // (tokens, width)
  const void* packed = nullptr;   // x as ProductKernels::pack lays it out, if there is one
  const void* weight = nullptr;   // (rows, width)
  const float* scales = nullptr;  // (rows) of an int8 weight
  int64_t tokens = 0, rows = 0, width = 0;
  bool y_is_f32 = false;  // else bf16
  void* y = nullptr;      // (tokens, rows)
};

using ProductLoop = void (*)(const ProductRows&, int64_t begin, int64_t end);

// By what x and the weight hold.
struct ProductKernels {
  ProductLoop f32_by_f32 = nullptr;
  ProductLoop bf16_by_f32 = nullptr;
  ProductLoop bf16_by_bf16 = nullptr;
  ProductLoop bf16_by_int8 = nullptr;
  // Where bf16 has to be laid out anew for its products with bf16 and int8 (at most 32 tokens);
  // null: these loops read x.
  int64_t (*packed_bytes)(int64_t tokens, int64_t width) = nullptr;
  void (*pack)(const ProductRows& rows, void* packed) = nullptr;
};

namespace cpu {
// Products of bf16 with bf16 and int8 only.
const ProductKernels& product_kernels_amx();
const ProductKernels& product_kernels_avx512_bf16();
// All.
const ProductKernels& product_kernels_avx512();
const ProductKernels& product_kernels_avx2();
const ProductKernels& product_kernels_portable();
}  // namespace cpu

}  // namespace reynard::ops
