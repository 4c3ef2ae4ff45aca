#pragma once
// What the warps of the backward kernel share: its configuration, its shared memory and its
// parameters.
//
// A step is what a block of keys does with 64 queries. Its dQ has a part for each 64 dimensions.

#include "reynard/attention/cuda/registers.cuh"
#include "reynard/attention/cuda/sm90/copy.cuh"
#include "reynard/attention/cuda/sm90/plan.h"

#include <cstdint>

namespace reynard::attention::cuda::sm90::bwd {

constexpr int kPieceBytes = 64 * kRowBytes;        // 64 queries, 64 dimensions
constexpr int kPartFloats = kQueriesPerTile * 64;  // of gradients on their way
constexpr int kSlots = 2;                          // of parts of dQ on their way
constexpr int kSumParts = 2;                       // of the sum of dS of a query

// kDim: head dimension rounded up to 64 or 128.
template <int kDim_, class Scalar_>
struct Config {
  static constexpr int kDim = kDim_;
  using Scalar = Scalar_;
  static constexpr int kHalves = kDim / 64;
  // Warpgroups, each with 64 keys: as many as the registers hold dK and dV of.
  static constexpr int kConsumers = kHalves == 1 ? 3 : 2;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kKeys = kConsumers * kOwnKeys;  // of a key block
  static constexpr int kKeyBytes = kKeys * kDim * 2;
  static constexpr int kStages = kConsumers;                   // of queries: as many as fit
  static constexpr int kBuffers = kConsumers;                  // of dS
  static constexpr int kHeadParts = kConsumers * 2 * kHalves;  // of dK and dV of a key block
  // Warpgroups that multiply dQ of a step: each its half of the dimensions, or one in its turn.
  static constexpr bool kTakesTurns = kHalves == 1;
  // Whether registers are left for the scores of the next step and for the biases of keys.
  static constexpr bool kRunsAhead = kConsumers == 2;
  // Who runs ahead multiplies its half of each dQ, who goes step by step all of it in its turn.
  static_assert(kRunsAhead != kTakesTurns);
};

// A key block of one head.
struct KeyTask {
  int b, h, n;
};

// What the queries of a step see of the keys of a warpgroup.
enum class Sight : uint8_t { kNone, kSome, kAll };

// What the producer says of a stage: the queries of a step, and where in its task it stands.
struct alignas(16) Step {
  bool has_queries, last_of_task, stop;
  Sight sights[4];  // of each warpgroup
  int m;
  int turn;   // of this key block among those that add to the dQ
  int start;  // keys before it are pruned
};

// A part of dQ on its way to global memory.
struct Delivery {
  KeyTask from;
  int m, turn;
  bool stop;
};

template <class C>
struct alignas(1024) Shared {
  char keys[C::kKeyBytes], values[C::kKeyBytes];
  char queries[C::kStages][C::kHalves * kPieceBytes], douts[C::kStages][C::kHalves * kPieceBytes];
  char dscores[C::kBuffers][C::kKeys * kRowBytes];  // [key][query]
  float dq[kSlots][kPartFloats];
  alignas(128) KeyRecord biases[C::kConsumers];
  QueryRecord records[C::kStages];
  float query_sums[C::kBuffers][C::kConsumers * 4][kQueriesPerTile];  // of dS over a warp's keys
  SplitSum dq_sums[kSlots][kSumParts][kQueriesPerTile];
  KeyTask task;
  Step steps[C::kStages];
  Delivery pending[C::kConsumers][2], deliveries[kSlots];
  uint64_t keys_full, keys_empty;
  uint64_t stage_full[C::kStages], stage_empty[C::kStages];
  uint64_t dscores_full[C::kBuffers], dscores_empty[C::kBuffers];
  uint64_t dq_full[kSlots], dq_empty[kSlots];
};

struct Params {
  CUtensorMap q, k, v, dout;
  BackwardTask task;
  const KeyRecord* biases;     // (B, H, key blocks, warpgroups)
  const QueryRecord* records;  // (B, H, steps)
  KeyPlan plan;
  int* turns;      // (B, H, steps, halves): parts of dQ that were added
  float* dq_sums;  // (B, H, steps, halves) of parts, unscaled
  // Where heads share keys: (B, H, key blocks) of the dK and dV of one head, else null.
  float* head_sums;
  int num_tasks, num_steps, num_key_blocks;
};

template <class C>
__device__ void prepare_shared(Shared<C>& s) {
  constexpr int kWarps = C::kConsumers * 4;
  init_barrier(shared_address(&s.keys_full), 1);
  init_barrier(shared_address(&s.keys_empty), kWarps);
  for (int i = 0; i < C::kStages; ++i) {
    init_barrier(shared_address(&s.stage_full[i]), 1);
    init_barrier(shared_address(&s.stage_empty[i]), kWarps);
  }
  for (int i = 0; i < C::kBuffers; ++i) {
    init_barrier(shared_address(&s.dscores_full[i]), kWarps);
    init_barrier(shared_address(&s.dscores_empty[i]), C::kTakesTurns ? 4 : kWarps);
  }
  for (int i = 0; i < kSlots; ++i) {
    init_barrier(shared_address(&s.dq_full[i]), 4);
    init_barrier(shared_address(&s.dq_empty[i]), 1);
  }
  fence_barrier_init();
}

}  // namespace reynard::attention::cuda::sm90::bwd
