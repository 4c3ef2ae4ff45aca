#pragma once
// What the warps of the backward kernel share: its configuration, its shared memory and its
// parameters.
//
// A step is what a block of 128 keys does with queries that were loaded together: two tiles of 64
// at 64 dimensions, one at 128. Either way its dQ has two parts of 64 queries and 64 dimensions,
// one for each warpgroup.

#include "reynard/attention/cuda/registers.cuh"
#include "reynard/attention/cuda/sm90/copy.cuh"
#include "reynard/attention/cuda/sm90/plan.h"

#include <cstdint>
#include <type_traits>

namespace reynard::attention::cuda::sm90::bwd {

constexpr int kConsumers = 2;  // warpgroups, each with half of the keys
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kOwnKeys = kKeysPerBlock / kConsumers;
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kStages = 2;                                // of queries: as many as fit
constexpr int kPieceBytes = kQueriesPerTile * kRowBytes;  // 64 queries, 64 dimensions
constexpr int kPieces = 2;                                // of a step
constexpr int kPartFloats = kQueriesPerTile * 64;         // of gradients on their way

// kDim: head dimension rounded up to 64 or 128.
template <int kDim_, class Scalar_>
struct Config {
  static constexpr int kDim = kDim_;
  using Scalar = Scalar_;
  static constexpr int kHalves = kDim / 64;
  static constexpr int kTiles = kPieces / kHalves;  // of a step
  static constexpr int kQueries = kTiles * kQueriesPerTile;
  static constexpr int kKeyBytes = kKeysPerBlock * kDim * 2;
  // Of dS of a key. Pairs of f32 need no f64 arithmetic, which waits for the matrix unit, but more
  // registers than two tiles leave.
  using KeySum = std::conditional_t<kTiles == 1, SplitSum, double>;
  static constexpr int kHeadParts = kConsumers * 2 * kHalves;  // of dK and dV of a key block
};

// What the producer says of a stage: the queries of a step, and where in its task it stands.
struct Step {
  int b, h, m, n;
  int turn;                         // of this key block among those that add to the dQ
  int start, full_begin, full_end;  // keys that are not pruned, and those that every query sees
  bool has_queries, first_of_task, last_of_task, stop;
};

// A part of dQ on its way to global memory.
struct Delivery {
  int b, h, m, turn;
  bool stop;
};

template <class C>
struct alignas(1024) Shared {
  char keys[C::kKeyBytes], values[C::kKeyBytes];
  char queries[kStages][kPieces * kPieceBytes], douts[kStages][kPieces * kPieceBytes];
  char dscores[2][C::kTiles][kKeysPerBlock * kRowBytes];  // [key][query], of even and odd steps
  float dq[kConsumers][kPartFloats];
  alignas(128) QueryRecord records[kStages][C::kTiles];
  float query_sums[2][C::kTiles][kConsumers * 4][kQueriesPerTile];  // of dS over each warp's keys
  SplitSum dq_sums[kConsumers][kQueriesPerTile];
  Step steps[kStages];
  Delivery deliveries[kConsumers];
  uint64_t keys_full, keys_empty;
  uint64_t stage_full[kStages], stage_empty[kStages];
  uint64_t dscores_full[2], dscores_empty[2];
  uint64_t dq_full[kConsumers], dq_empty[kConsumers];
};

struct Params {
  CUtensorMap q, k, v, dout;
  BackwardTask task;
  const BiasRecord* biases;
  const QueryRecord* records;  // (B, H, steps, tiles of a step)
  KeyPlan plan;
  int* turns;      // (B, H, steps, 2): parts of dQ that were added
  float* dq_sums;  // (B, H, steps, 2) of parts, unscaled
  // Where heads share keys: (B, H, key blocks) of the dK and dV of one head, else null.
  float* head_sums;
  int num_tasks, num_steps, num_key_blocks;
};

template <class C>
__device__ void prepare_shared(Shared<C>& s) {
  constexpr int kWarps = kConsumers * 4;
  init_barrier(shared_address(&s.keys_full), 1);
  init_barrier(shared_address(&s.keys_empty), kWarps);
  for (int i = 0; i < kStages; ++i) {
    init_barrier(shared_address(&s.stage_full[i]), 1);
    init_barrier(shared_address(&s.stage_empty[i]), kWarps);
  }
  for (int i = 0; i < 2; ++i) {
    init_barrier(shared_address(&s.dscores_full[i]), kWarps);
    init_barrier(shared_address(&s.dscores_empty[i]), kWarps);
  }
  for (int i = 0; i < kConsumers; ++i) {
    init_barrier(shared_address(&s.dq_full[i]), 1);
    init_barrier(shared_address(&s.dq_empty[i]), 1);
  }
  fence_barrier_init();
}

}  // namespace reynard::attention::cuda::sm90::bwd
