#pragma once
// A sum of gates as the tensor-core kernels read it: in powers of two, the sum of two f32.
//
// That is 48 bits: the difference of two such numbers, high parts first, is as exact as an f32
// logit needs even where the sums reach millions.

#include "reynard/attention/cuda/logarithms.cuh"

namespace reynard::attention::cuda {

struct alignas(8) SplitSum {
  float high = 0, low = 0;
};

// sum: in powers of e.
__device__ __forceinline__ SplitSum split_sum(double sum) {
  const double scaled = sum * kLog2E;
  const float high = static_cast<float>(scaled);
  return {high, static_cast<float>(scaled - high)};
}

__device__ __forceinline__ float difference(const SplitSum& a, const SplitSum& b) {
  return (a.high - b.high) + (a.low - b.low);
}

}  // namespace reynard::attention::cuda
