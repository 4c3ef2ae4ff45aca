#pragma once
// Sums of dS, which become the gradient of the gates: of unrounded f32 within a warp, of pairs of
// f32 beyond.

#include "reynard/attention/cuda/sm90/plan.h"

namespace reynard::attention::cuda::sm90::bwd {

// The sum of two f32 gains one more: 48 bits, without f64 arithmetic, which waits for the matrix
// unit.
__device__ __forceinline__ void add_to(SplitSum& sum, float value) {
  const float high = sum.high + value, part = high - sum.high;
  sum.low += (sum.high - (high - part)) + (value - part);
  sum.high = high;
}

__device__ __forceinline__ double whole(const SplitSum& sum) {
  return static_cast<double>(sum.high) + sum.low;
}

// Of 2 kKept sums the first or the second half stays with a lane, and gains those of the lane
// kDistance away.
template <int kKept, int kDistance, int kCount>
__device__ __forceinline__ void exchange_halves(float (&sums)[kCount], int lane) {
  const bool upper = lane & kDistance;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const float own = upper ? sums[kKept + i] : sums[i];
    const float other = upper ? sums[i] : sums[kKept + i];
    sums[i] = own + __shfl_xor_sync(~0U, other, kDistance);
  }
}

// Sums over the 16 keys of a warp, of 64 queries whose dS^T lies in registers as wgmma.cuh says.
// Lanes that hold the same queries exchange halves until each has two sums of its own.
__device__ __forceinline__ void sum_over_keys(const float (&dscores)[32], int lane, float* to) {
  constexpr int kSums = 16;
  float sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sums[i] = dscores[i / 2 * 4 + i % 2] + dscores[i / 2 * 4 + i % 2 + 2];
  }
  exchange_halves<kSums / 2, 16>(sums, lane);
  exchange_halves<kSums / 4, 8>(sums, lane);
  exchange_halves<kSums / 8, 4>(sums, lane);
  reinterpret_cast<float2*>(to)[lane / 4 * 4 + lane % 4] = {sums[0], sums[1]};
}

}  // namespace reynard::attention::cuda::sm90::bwd
