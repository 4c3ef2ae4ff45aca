#pragma once
// What is made ready before the Hopper kernels run: the biases of key blocks as an operand of the
// matrix unit, the key blocks that each task reads, and the order of the tasks, costly ones first.

#include "reynard/attention/cuda/problem.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::attention::cuda::sm90 {

constexpr int kKeysPerBlock = 128;

// Biases of one block of 128 keys relative to its last key, -(c_j - c_last) / scale, each as the
// sum of three bf16 values: with a left operand of ones, one step of the matrix unit adds them to
// the scores. The sum of three carries 24 bits, as f32 does.
struct BiasRecord {
  struct Key {
    uint16_t high = 0, middle = 0, low = 0;  // bf16
    uint16_t zeros[5] = {};
  } keys[kKeysPerBlock];
  float last_high = 0, last_low = 0;  // c_last in powers of two, as the sum of two f32
  float padding[2] = {};
};
static_assert(sizeof(BiasRecord) == kKeysPerBlock * 16 + 16);

//   records (B, H, ceil(Tk/128))
void make_bias_records(const Problem& problem, BiasRecord* records, cudaStream_t stream);

// Key blocks [first, last] of a task, walked from the last; none when last < first.
struct BlockRange {
  int first = 0, last = -1;
};

struct Plan {
  BlockRange* ranges = nullptr;  // (B, H, ceil(Tq/rows))
  int* order = nullptr;          // the same number of task indices
  int* next_task = nullptr;      // taken with atomicAdd; set to 0 by plan()
};
// Tasks of `rows` (a multiple of 64) queries.
void plan_queries(const Problem& problem, int rows, const Plan& plan, cudaStream_t stream);

}  // namespace reynard::attention::cuda::sm90
