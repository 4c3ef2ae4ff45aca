#pragma once
// Keys as int8 codes with a scale per key: a search for few queries is bound by the bytes that it
// reads. The upper halves of all codes, a quarter of bf16, tell which keys may be among the best;
// of those alone the lower halves are read. Results stay those of the keys.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reynard::knn {

inline constexpr int64_t kCodeStep = 64;   // codes of a key fill whole registers
inline constexpr int64_t kCodeGroup = 16;  // slots whose upper halves lie together

// Key i is within 0.501 scale_i of scale_i code_i in each dimension; code + 128 is 16 upper +
// lower, both 0 ... 15. D is rounded up to kCodeStep, S to kCodeGroup where slots lie in groups.
struct KeyCodes {
  // (G,S/16,D/8,16,4) u8, contiguous: byte j of slot lane and step has dimension 8 step + j in its
  // lower half and 8 step + 4 + j in its upper one. Undefined: no codes.
  at::Tensor upper;
  // (G,S,D/2) u8, contiguous: byte j of each 32 has dimension j of their 64 in its lower half and
  // 32 + j in its upper one.
  at::Tensor lower;
  at::Tensor scales;  // (G,S) f32, contiguous
  double largest_scale = 0;

  bool defined() const { return upper.defined(); }
};

// Codes for that many slots, to be filled.
KeyCodes new_codes(int64_t num_heads, int64_t slots, int64_t head_dim);

// Codes keys (G,n,D) f32 | bf16 into the slots from `slot` on. Throws reynard::Error where one is
// not finite.
void encode_keys(const at::Tensor& keys, int64_t slot, KeyCodes& codes);

}  // namespace reynard::knn
