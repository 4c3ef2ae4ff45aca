#pragma once
// What a warpgroup of the backward leaves of its 64 keys: rows of dK and dV, or parts of them where
// heads share keys, and the sums of dS.

#include "reynard/attention/cuda/sm90/backward_config.cuh"
#include "reynard/attention/cuda/sm90/backward_sums.cuh"

namespace reynard::attention::cuda::sm90::bwd {

// The keys of a thread are `first` and the eighth behind it.
struct OwnKeys {
  KeyTask task;
  int first, thread;

  __device__ __forceinline__ int operator[](int r) const { return first + 8 * r; }
};

// The sum of dS of a key, whose queries four neighbouring threads share.
__device__ __forceinline__ double sum_of_key(const SplitSum& own) {
  double sum = whole(own);
  sum += __shfl_xor_sync(~0U, sum, 1);
  return sum + __shfl_xor_sync(~0U, sum, 2);
}

__device__ __forceinline__ void store_key_sum(const BackwardTask& task,
                                              const KeyTask& of,
                                              int key,
                                              double sum) {
  const Problem& problem = task.problem;
  if (key >= problem.Tk) return;
  task.dkey_sums[(int64_t{of.b} * problem.H + of.h) * problem.Tk + key] = -sum;
}

// Of four neighbouring threads each holds a row of a matrix of 4 x 4 pairs of dimensions; each gets
// a column.
__device__ __forceinline__ void transpose_pairs(uint32_t (&pairs)[4], int thread) {
#pragma unroll
  for (int distance = 1; distance < 4; distance *= 2) {
    const bool upper = thread & distance;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & distance) continue;
      uint32_t &low = pairs[i], &high = pairs[i + distance];
      const uint32_t other = __shfl_xor_sync(~0U, upper ? low : high, distance);
      if (upper) {
        low = other;
      } else {
        high = other;
      }
    }
  }
}

// Of a head that has keys of its own; 16 bytes of a row at a time.
template <class Scalar, int kCount>
__device__ __forceinline__ void store_rows(const Problem& problem,
                                           const OwnKeys& keys,
                                           const Operand& to,
                                           const float (&sums)[kCount],
                                           float factor) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    auto* row = static_cast<Scalar*>(to.data) + keys.task.b * to.batch +
                int64_t{keys[r]} * to.time + keys.task.h * to.head;
#pragma unroll
    for (int j = 0; j < kCount / 4; j += 4) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = sums + 4 * (j + i) + 2 * r;
        pairs[i] = packed(pair[0] * factor, pair[1] * factor, Scalar());
      }
      transpose_pairs(pairs, keys.thread);
      const int d = 8 * (j + keys.thread % 4);
      if (keys[r] >= problem.Tk || d >= problem.D) continue;
      *reinterpret_cast<uint4*>(row + d) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }
}

// In parts of 64 rows and 64 dimensions, each [register quad][thread][4]: whoever reads one back
// knows what it holds.
template <int kCount>
__device__ __forceinline__ void store_parts(float* to, int thread, const float (&sums)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    reinterpret_cast<float4*>(to)[j * kWarpgroup + thread] = {
        sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
  }
}
// The same, added to what lies there.
template <int kCount>
__device__ __forceinline__ void add_parts(float* to, int thread, const float (&sums)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(to + (j * kWarpgroup + thread) * 4)),
                 "f"(sums[4 * j]),
                 "f"(sums[4 * j + 1]),
                 "f"(sums[4 * j + 2]),
                 "f"(sums[4 * j + 3])
                 : "memory");
  }
}

}  // namespace reynard::attention::cuda::sm90::bwd
