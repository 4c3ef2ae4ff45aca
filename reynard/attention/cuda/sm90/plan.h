#pragma once
// What is made ready before the Hopper kernels run: the biases of key blocks as an operand of the
// matrix unit, the key blocks that each task reads, and the order of the tasks, costly ones first.

#include "reynard/attention/cuda/problem.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::attention::cuda::sm90 {

constexpr int kKeysPerBlock = 128;

// A number as the sum of three bf16, which carries 24 bits as f32 does, and three ones: an operand
// of the matrix unit that adds the number to every sum where it meets ones, and the other way
// round.
struct alignas(16) SplitNumber {
  uint16_t parts[3] = {};
  uint16_t ones[3] = {};
  uint16_t zeros[2] = {};
};

// Biases of one block of 128 keys relative to its last key, -(c_j - c_last) / scale.
struct BiasRecord {
  SplitNumber keys[kKeysPerBlock];
  float last_high = 0, last_low = 0;  // c_last in powers of two, as the sum of two f32
  float padding[2] = {};
};
static_assert(sizeof(BiasRecord) == kKeysPerBlock * 16 + 16);

//   records (B, H, ceil(Tk/128))
void make_bias_records(const Problem& problem, BiasRecord* records, cudaStream_t stream);

constexpr int kQueriesPerTile = 64;  // of the backward

// What the backward adds to the scores of 64 queries and to their dP: (c_i - c_first - lse_i) /
// scale with the ones first, and -delta_i.
struct QueryRecord {
  SplitNumber logits[kQueriesPerTile];
  SplitNumber deltas[kQueriesPerTile];
  float first_high = 0, first_low = 0;  // c_first in powers of two, as the sum of two f32
  float padding[2] = {};
};
static_assert(sizeof(QueryRecord) == 2 * kQueriesPerTile * 16 + 16);

//   records (B, H, ceil(Tq/64))
void make_query_records(const BackwardTask& task, QueryRecord* records, cudaStream_t stream);

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

// For the backward: key blocks that each tile of 64 queries reads, and for each key block the tiles
// that may read it.
struct TileRange {
  int first = 0, last = -1;
};
struct TileKeys {
  BlockRange blocks;
  int full_begin = 0, full_end = 0;  // keys that every query of a whole tile sees
};
struct KeyPlan {
  TileKeys* keys = nullptr;    // (B, H, ceil(Tq/64))
  TileRange* tiles = nullptr;  // (B, H, ceil(Tk/128))
  int* next_task = nullptr;    // set to 0
};
void plan_keys(const Problem& problem, const KeyPlan& plan, cudaStream_t stream);

}  // namespace reynard::attention::cuda::sm90
