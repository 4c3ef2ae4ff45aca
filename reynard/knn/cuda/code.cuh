#pragma once
// Scores by the definition (order.h), as codes, and where keys and queries lie.

#include "reynard/knn/cuda/filter.h"

#include <cuda_bf16.h>
#include <math_constants.h>

namespace reynard::knn::cuda {

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

// Product and sum rounded each by itself.
__device__ inline float plain_step(float sum, float q, float k) {
  return __fadd_rn(sum, __fmul_rn(q, k));
}

__device__ inline Code make_code(float score, int64_t place) {
  if (!(score == score)) score = -CUDART_INF_F;
  int bits = __float_as_int(score);
  bits ^= (bits >> 31) & 0x7fffffff;
  return (static_cast<Code>(bits) << 32) | static_cast<uint32_t>(0xffffffffU - place);
}

__device__ inline float score_of(Code code) {
  if (code == kNoCode) return -CUDART_INF_F;
  int bits = static_cast<int>(code >> 32);
  bits ^= (bits >> 31) & 0x7fffffff;
  return __int_as_float(bits);
}

__device__ inline int64_t place_of(Code code) {
  return 0xffffffffU - static_cast<uint32_t>(code);
}

// Index of query j of a group in tensors (B, Tq, H, ...).
__device__ inline int64_t query_index(const FilterTask& t, int group, int j) {
  const int row = group / t.num_key_heads, head = group % t.num_key_heads;
  return (static_cast<int64_t>(row) * t.num_tokens + j / t.repeat) * (t.num_key_heads * t.repeat) +
         head * t.repeat + j % t.repeat;
}

__device__ inline int64_t slot_of(const KeyGroup& group, int64_t place) {
  const int64_t slot = group.first_slot + place;
  return slot < group.slots ? slot : slot - group.slots;
}

// The i-th block of a sample: a hashed one of each `sample` consecutive blocks.
__device__ inline int64_t sampled_block(int64_t i, int sample) {
  if (sample == 1) return i;
  uint32_t h = static_cast<uint32_t>(i) * 0x9e3779b9U;
  h ^= h >> 15;
  h *= 0x85ebca6bU;
  h ^= h >> 13;
  return i * sample + h % static_cast<uint32_t>(sample);
}

__device__ inline void append(const FilterTask& t, int64_t query, Code code) {
  const int at = atomicAdd(t.counts + query, 1);
  if (at < t.capacity) t.candidates[query * t.capacity + at] = code;
}

}  // namespace reynard::knn::cuda
