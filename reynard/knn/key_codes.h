#pragma once
// Keys as int8 codes with a scale per key: a search for few queries is bound by the bytes that it
// reads, and codes are half of bf16. They only tell which keys cannot be among the best; results
// stay those of the keys.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reynard::knn {

// Key i is within 0.501 scale_i of scale_i code_i in each dimension.
struct KeyCodes {
  at::Tensor codes;   // (G,S,D rounded up to kCodeStep) i8, contiguous; undefined: no codes
  at::Tensor scales;  // (G,S) f32, contiguous
  double largest_scale = 0;

  bool defined() const { return codes.defined(); }
};

inline constexpr int64_t kCodeStep = 64;  // codes of a key fill rows of matrix tiles

// Codes for that many slots, to be filled.
KeyCodes new_codes(int64_t num_heads, int64_t slots, int64_t head_dim);

// Codes keys (G,n,D) f32 | bf16 into the slots from `slot` on. Throws reynard::Error where one is
// not finite.
void encode_keys(const at::Tensor& keys, int64_t slot, KeyCodes& codes);

}  // namespace reynard::knn
