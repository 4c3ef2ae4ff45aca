#pragma once
// What "the best k keys" means, to the last bit: the score of a query and a key as a sum in fixed
// order, and the order of scored keys. Everything that searches must agree with these.

#include <cstdint>
#include <limits>

namespace reynard::knn {

struct Scored {
  float score = 0;
  int64_t id = 0;
};

// A bf16 value by its bits.
struct BFloat16 {
  uint16_t bits;
};
inline float to_float(float x) {
  return x;
}
inline float to_float(BFloat16 x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x.bits) << 16);
}

// sum_d q_d k_d in f32, d ascending, product and sum rounded each by itself. Must be compiled
// without contraction to fused multiply-add: not for files of one instruction set.
template <class Element>
float score(const float* q, const Element* k, int64_t head_dim) {
  float sum = 0;
  for (int64_t d = 0; d < head_dim; ++d) sum += q[d] * to_float(k[d]);
  return sum;
}

// NaN, the score of finite numbers whose sums overflow both ways, ranks with -inf.
inline float rank(float score) {
  return score == score ? score : -std::numeric_limits<float>::infinity();
}

// Descending scores; equal ones by ascending id.
inline bool before(const Scored& a, const Scored& b) {
  const float left = rank(a.score), right = rank(b.score);
  return left != right ? left > right : a.id < b.id;
}

}  // namespace reynard::knn
