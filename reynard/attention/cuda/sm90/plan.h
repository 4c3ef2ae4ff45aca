#pragma once
// What is made ready before the Hopper kernels run: the biases of key blocks as an operand of the
// matrix unit, the key blocks that each task reads, and the order of the tasks.

#include "reynard/attention/cuda/problem.h"
#include "reynard/attention/cuda/sm90/key_block_order.h"
#include "reynard/attention/cuda/sm90/query_block_order.h"
#include "reynard/attention/cuda/split_sum.cuh"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::attention::cuda::sm90 {

constexpr int kKeysPerBlock = 128;
// Biases are divided by the scale: those of a block whose gates are all shut, 128,000, are f32
// still.
constexpr float kLeastScale = 1e-30F;

// A number as the sum of three bf16, which carries 24 bits as f32 does, and three ones: an operand
// of the matrix unit that adds the number to every sum where it meets ones, and the other way
// round.
struct alignas(16) SplitNumber {
  uint16_t parts[3] = {};
  uint16_t ones[3] = {};
  uint16_t zeros[2] = {};
};

// One block of 128 keys: biases relative to the last key of each part that is multiplied at once,
// -(c_j - c_last) / scale, and the sums c_j themselves. Keys beyond the last one repeat it.
struct BiasRecord {
  SplitNumber keys[kKeysPerBlock];
  SplitSum sums[kKeysPerBlock];
};
static_assert(sizeof(BiasRecord) == kKeysPerBlock * 24);

constexpr int kOwnKeys = 64;         // of a warpgroup of the backward
constexpr int kQueriesPerTile = 64;  // of the backward

// For the backward every number is halved: the matrix unit reads both operands twice.

// 64 keys: biases relative to the last one, -(c_j - c_last) / scale.
struct KeyRecord {
  SplitNumber keys[kOwnKeys];
  SplitSum last;  // c_last, whole
  float padding[2] = {};
};
static_assert(sizeof(KeyRecord) == kOwnKeys * 16 + 16);

// What is added to the scores of 64 queries and to their dP: (c_i - c_first - lse_i) / scale with
// the ones first, and -delta_i in place of the numbers that meet a key's ones, with no ones.
struct QueryRecord {
  SplitNumber logits[kQueriesPerTile];
  SplitNumber deltas[kQueriesPerTile];
  SplitSum first;  // c_first, whole
  float padding[2] = {};
};
static_assert(sizeof(QueryRecord) == 2 * kQueriesPerTile * 16 + 16);

// A block of queries of one head, and all that is to be known of its keys but first_key.
struct alignas(16) QueryTask {
  static constexpr int kMostGroups = 3;

  int head = 0;                  // b H + h
  int m = -1;                    // -1: there is no such task
  BlockRange blocks;             // of the kernel's own keys (QueryPreparation::keys)
  int starts[kMostGroups] = {};  // of each 64 queries: keys before it are pruned
  int batch = 0;                 // b
};

struct Plan {
  BlockRange* ranges = nullptr;  // scratch, one a task, in the order of sections of heads
  QueryTask* tasks = nullptr;    // the same number, in the order in which they are taken
  int* next_task = nullptr;      // taken with atomicAdd; 0 before the first
};

// What is made for the forward.
struct QueryPreparation {
  Problem problem;
  int rows = 0;        // of a task: 64 to 192, a multiple of 64
  int keys = 0;        // that are multiplied at once: 64 or 128
  int processors = 0;  // that take one task each at a time
  Plan plan;
  BiasRecord* records = nullptr;   // null: no bias
  SplitSum* query_sums = nullptr;  // (B, H, padded): beyond Tq the last one repeats
  int padded = 0;                  // whole tasks
};
void prepare_queries(const QueryPreparation& to, cudaStream_t stream);

// For the backward: key blocks that each tile of 64 queries reads, for each key block the tiles
// that may read it, and the order of (batch, head) pairs.
struct TileRange {
  int first = 0, last = -1;
};
struct alignas(16) TileKeys {
  BlockRange blocks;
  int start = 0;                     // keys before it are pruned
  int begin = 0, end = 0;            // keys that some query sees
  int full_begin = 0, full_end = 0;  // keys that every query of a whole tile sees
};
struct KeyPlan {
  TileKeys* keys = nullptr;    // (B, H, ceil(Tq/64))
  TileRange* tiles = nullptr;  // (B, H, key blocks)
  int* costs = nullptr;        // (B, H): key blocks that all tiles read; zeros before
  int* order = nullptr;        // (B H) pairs b H + h: whole rows first, then those of high cost
  // The tasks, in the order in which they are taken; their pairs are places in that of pairs.
  TakenKeyBlock* taken = nullptr;
  int* next_task = nullptr;  // set to 0
};

// What is made for the backward; task.dquery_sums become zeros.
struct BackwardPreparation {
  BackwardTask task;
  int block_keys = 0;      // of a key block: a multiple of 64
  int processors = 0;      // that take one each at a time; pairs of them where each takes a half
  int tiles_in_cache = 0;  // of 64 queries, with their gradients and sums of dQ
  KeyPlan plan;
  KeyRecord* biases = nullptr;     // (B, H, 64 keys of key blocks)
  QueryRecord* records = nullptr;  // (B, H, ceil(Tq/64)): rows beyond the last query are zeros
};
void prepare_backward(const BackwardPreparation& to, cudaStream_t stream);

}  // namespace reynard::attention::cuda::sm90
