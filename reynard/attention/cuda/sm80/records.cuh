#pragma once
// What the kernels of this folder read of each position beside its vectors.

#include "reynard/attention/cuda/problem.h"
#include "reynard/attention/cuda/split_sum.cuh"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::attention::cuda::sm80 {

using KeyRecord = SplitSum;  // c_j; 0 without bias

// c_i; in the backward minus lse_i.
struct alignas(16) QueryRecord : SplitSum {
  float delta;    // of the backward
  int32_t begin;  // first key that the query sees; INT_MAX in the padding
};

// Arrays are padded so that a tile of 128 can be read everywhere: (B, H, padded(T)).
__host__ __device__ constexpr int64_t padded(int64_t length) {
  return (length + 127) / 128 * 128;
}

struct Records {
  KeyRecord* keys = nullptr;       // (B, H, padded(Tk))
  QueryRecord* queries = nullptr;  // (B, H, padded(Tq))
};

int64_t records_bytes(const Problem& problem);
// The arrays in `scratch`, of records_bytes() and aligned to 256.
Records records_in(void* scratch, const Problem& problem);

//   lse (B, H, Tq), delta (B, H, Tq): of the backward, or null
void make_records(const Problem& problem,
                  const float* lse,
                  const double* delta,
                  const Records& records,
                  cudaStream_t stream);

}  // namespace reynard::attention::cuda::sm80
