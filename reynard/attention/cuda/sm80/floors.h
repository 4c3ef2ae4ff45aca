#pragma once
// Floors of the tight rule on Ampere and later GPUs: the log-sum-exp of each row's nearest keys,
// and what the rule needs to know of blocks of the same queries and keys, read once. bf16 and f16,
// head dimensions up to 256 that are multiples of 8.

#include "reynard/attention/cuda/problem.h"

#include <cuda_runtime_api.h>

namespace reynard::attention::cuda::sm80 {

// Of blocks of 128 queries and of 64 keys: the largest norms, slightly enlarged so that they are
// bounds, and log sum_j exp(-c_j) of keys, where they have sums c of gates.
struct BlockMeasures {
  float* query_norms = nullptr;  // (B, H, ceil(Tq/128))
  float* key_norms = nullptr;    // (B, G, ceil(Tk/64))
  double* masses = nullptr;      // (B, H, ceil(Tk/64)), or null
};

struct FloorTask {
  Problem problem;  // v and start are not read
  // Below 0: heads that keep all keys at it (keeps_all_keys) and share none are not written.
  double log_tolerance = 0;
  double* floors = nullptr;   // (B, H, Tq)
  BlockMeasures of_blocks{};  // without query_norms: not wanted
};

bool takes_floors(const Problem& problem);

// Whether queries and keys have the same positions: each block of queries then reads its own keys
// and can measure both.
bool measures_blocks(const Problem& problem);

void floors(const FloorTask& task, cudaStream_t stream);

}  // namespace reynard::attention::cuda::sm80
