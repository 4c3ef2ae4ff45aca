#pragma once
// What the kernels of this folder read of each position beside its vectors. Sums of gates are f64;
// as two f32 of powers of two they keep 48 bits, so the difference of two sums, high parts first,
// is as exact as an f32 logit needs even where the sums reach millions.

#include "reynard/attention/cuda/problem.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::attention::cuda::sm80 {

struct alignas(8) KeyRecord {
  float high, low;  // c_j; 0 without bias
};

struct alignas(16) QueryRecord {
  float high, low;  // c_i; in the backward minus lse_i
  float delta;      // of the backward
  int32_t begin;    // first key that the query sees; INT_MAX in the padding
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
