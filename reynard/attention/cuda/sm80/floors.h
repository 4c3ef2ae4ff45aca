#pragma once
// Floors of the tight rule on Ampere and later GPUs: the log-sum-exp of each row's nearest keys,
// and the norms that the rule needs of the same queries and keys, read once. bf16 and f16, head
// dimensions up to 256 that are multiples of 8.

#include "reynard/attention/cuda/problem.h"

#include <cuda_runtime_api.h>

namespace reynard::attention::cuda::sm80 {

struct FloorTask {
  Problem problem;           // v and start are not read
  double* floors = nullptr;  // (B, H, Tq)
  // Largest norms of blocks of 128 queries and of 64 keys, slightly enlarged so that they are
  // bounds; null: not wanted. Those of keys only where has_key_norms().
  float* query_norms = nullptr;  // (B, H, ceil(Tq/128))
  float* key_norms = nullptr;    // (B, G, ceil(Tk/64))
};

bool takes_floors(const Problem& problem);

// Whether queries and keys have the same positions: each block of queries then reads its own keys.
bool has_key_norms(const Problem& problem);

void floors(const FloorTask& task, cudaStream_t stream);

}  // namespace reynard::attention::cuda::sm80
