#pragma once
// What the warps of the backward kernel share: its configuration, its shared memory and its
// parameters.
//
// A step is what a block of keys does with 64 queries. Its dQ has a part for each 64 dimensions.
//
// A warpgroup has 64 keys of its own. Above 128 dimensions a task is one half of the dimensions of
// dQ, dK and dV of a key block, for which it computes scores and dP of all dimensions.

#include "reynard/attention/cuda/registers.cuh"
#include "reynard/attention/cuda/sm90/copy.cuh"
#include "reynard/attention/cuda/sm90/plan.h"

#include <cstdint>
#include <type_traits>

namespace reynard::attention::cuda::sm90::bwd {

constexpr int kPieceBytes = 64 * kRowBytes;        // 64 queries, 64 dimensions
constexpr int kPartFloats = kQueriesPerTile * 64;  // of gradients on their way
constexpr int kSlots = 2;                          // of parts of dQ on their way
constexpr int kSumParts = 2;                       // of the sum of dS of a query
constexpr int kPlaces = 4;                         // of steps whose dQ is added from registers
constexpr int kDqWarps = 2;                        // warps that deliver dQ or keep turns
static_assert(kSlots == kDqWarps && kPlaces % kDqWarps == 0);

// kDim: head dimension rounded up to 64, 128 or 256.
template <int kDim_, class Scalar_>
struct Config {
  static constexpr int kDim = kDim_;
  using Scalar = Scalar_;
  static constexpr int kPieces = kDim / 64;  // of 64 dimensions
  // Tasks of a key block, and of each the pieces of its dQ, dK and dV.
  static constexpr bool kHasHalves = kPieces > 2;
  static constexpr int kHalves = kHasHalves ? 2 : 1;
  static constexpr int kTaskPieces = kPieces / kHalves;
  static constexpr int kGradientDims = kDim / kHalves;
  // Warpgroups: as many as the registers hold dK and dV of.
  static constexpr int kConsumers = kPieces == 1 ? 3 : 2;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  // With fewer than 240 ptxas runs one product of halves after the other (C7512).
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : kHasHalves ? 240 : 232;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : kHasHalves ? 24 : 40;
  static constexpr int kKeyGroups = kConsumers;        // of 64 keys
  static constexpr int kKeys = kKeyGroups * kOwnKeys;  // of a key block
  static constexpr int kKeyBytes = kKeys * kDim * 2;
  // Steps that are described, and those whose queries fit. Where one does its quarters come and go
  // by themselves.
  static constexpr int kStages = kHasHalves ? 2 : 3;
  static constexpr int kTileStages = kHasHalves ? 1 : kStages;
  static constexpr int kBuffers = kHasHalves ? 1 : kConsumers;  // of dS
  static constexpr int kHeadParts = kKeyGroups * 2 * kPieces;   // of dK and dV of a key block
  // Who multiplies dQ of a step and how it reaches global memory: one warpgroup, through shared
  // memory and warps that deliver it; or each its half of the dimensions, straight from registers,
  // and warps that keep turns say when theirs has come.
  static constexpr bool kDelivers = kPieces == 1;
  // Whether registers are left for the scores of the next step, and for the biases of keys.
  static constexpr bool kRunsAhead = kConsumers == 2;
  static constexpr bool kBiasesInRegisters = kRunsAhead && !kHasHalves;
  // Who runs ahead multiplies its half of each dQ, who goes step by step all of every third.
  static_assert(kRunsAhead != kDelivers);
};

// The first dimension of a piece: those of the task lie last in shared memory.
template <class C>
__device__ __forceinline__ int dim_of_piece(int half, int piece) {
  const bool is_own = piece >= C::kPieces - C::kTaskPieces;
  return (is_own ? half : 1 - half) * C::kGradientDims + piece % C::kTaskPieces * 64;
}

// A key block of one head, or a half of its dimensions.
struct KeyTask {
  int b, h, n;
  int half = 0;
};

// The quarters of a stage, in the order in which they are given back: of queries and gradients of
// outputs the dimensions of other tasks, and those of which this one has dQ, dK and dV. Pieces lie
// in shared memory in that order too: first those of the others.
enum Quarter { kOtherQueries, kOtherDouts, kOwnQueries, kOwnDouts, kQuarters };

// The queries whose quarters are loaded for a step.
struct QuarterTile {
  int b, h, m, half;
};

// What the queries of a step see of 64 keys.
enum class Sight : uint8_t { kNone, kSome, kAll };

// What the producer says of a stage: the queries of a step, and where in its task it stands.
struct alignas(16) Step {
  bool has_queries, last_of_task, stop;
  Sight sights[4];  // of each 64 keys
  int m;
  int turn;   // of this key block among those that add to the dQ
  int start;  // keys before it are pruned
};

// What is said of a step whose dQ is added from registers.
struct alignas(16) Addition {
  int tile;  // of all: ((b H + h) steps + m) halves + half
  int m, turn;
  bool stop;
};

// A part of dQ on its way to global memory.
struct Delivery {
  KeyTask from;
  int m, turn;
  bool stop;
};

// Parts of dQ on their way, where they are delivered.
template <class C>
struct DeliveryShared {
  alignas(1024) float dq[kSlots][kPartFloats];
  float query_sums[C::kBuffers][C::kKeyGroups * 4][kQueriesPerTile];  // of dS over a warp's keys
  SplitSum dq_sums[kSlots][kSumParts][kQueriesPerTile];
  Delivery pending[C::kConsumers][2], deliveries[kSlots];
  uint64_t dq_full[kSlots], dq_empty[kSlots];
};
// Where consumers add: whose turn it is to add to the dQ of a step. Steps have places of their own,
// by turns, since a step's turn may come long after its stage was given back.
template <class C>
struct TurnShared {
  Addition additions[kPlaces];
  float query_sums[kPlaces][C::kKeyGroups * 4][kQueriesPerTile];  // of dS over a warp's keys
  uint64_t addition_full[kPlaces], addition_empty[kPlaces];
  uint64_t sums_full[kPlaces], turn_come[kPlaces], dq_added[kPlaces];
};
template <class C>
struct QuarterShared : TurnShared<C> {
  QuarterTile tiles[C::kStages];
  uint64_t quarter_full[kQuarters], quarter_empty[kQuarters], values_empty;
};
template <class C>
using GradientShared =
    std::conditional_t<C::kDelivers,
                       DeliveryShared<C>,
                       std::conditional_t<C::kHasHalves, QuarterShared<C>, TurnShared<C>>>;

template <class C>
struct alignas(1024) Shared : GradientShared<C> {
  alignas(1024) char keys[C::kKeyBytes];
  char values[C::kKeyBytes];
  char queries[C::kTileStages][C::kPieces * kPieceBytes];
  char douts[C::kTileStages][C::kPieces * kPieceBytes];
  char dscores[C::kBuffers][C::kKeys * kRowBytes];  // [key][query]
  alignas(128) KeyRecord biases[C::kKeyGroups];
  QueryRecord records[C::kStages];
  KeyTask task;
  Step steps[C::kStages];
  Step planned[32];  // by the producer's lanes, before they have a stage
  uint64_t keys_full, keys_empty;
  uint64_t stage_full[C::kStages], stage_empty[C::kStages];
  uint64_t dscores_full[C::kBuffers], dscores_empty[C::kBuffers];
};

struct Params {
  CUtensorMap q, k, v, dout;
  CUtensorMap dk, dv;  // tiles of 64 keys, where rows leave by the copy engine
  BackwardTask task;
  const KeyRecord* biases;     // (B, H, 64 keys of key blocks)
  const QueryRecord* records;  // (B, H, steps)
  KeyPlan plan;
  int* turns;      // (B, H, steps, halves): key blocks that added to its dQ
  int* next_part;  // of dQ that becomes rows; 0 before
  float* dq_sums;  // (B, H, steps, pieces) of parts, unscaled
  // Where heads share keys: (B, H, key blocks) of the dK and dV of one head, else null.
  float* head_sums;
  int num_tasks;  // (B, H, key blocks, halves)
  int num_steps, num_key_blocks;
};

template <class C>
__device__ void prepare_shared(Shared<C>& s) {
  constexpr int kWarps = C::kConsumers * 4;
  init_barrier(shared_address(&s.keys_full), 2);  // values; keys and what is said of the task
  init_group_barrier<kWarp>(shared_address(&s.keys_empty), kWarps);
  for (int i = 0; i < C::kStages; ++i) {
    init_barrier(shared_address(&s.stage_full[i]), 1);
    init_group_barrier<kWarp>(shared_address(&s.stage_empty[i]), kWarps + C::kHasHalves);
  }
  for (int i = 0; i < C::kBuffers; ++i) {
    init_group_barrier<kWarp>(shared_address(&s.dscores_full[i]), kWarps);
    init_group_barrier<kWarp>(shared_address(&s.dscores_empty[i]), C::kDelivers ? 4 : kWarps);
  }
  if constexpr (!C::kDelivers) {
    for (int i = 0; i < kPlaces; ++i) {
      init_barrier(shared_address(&s.addition_full[i]), 1);
      init_group_barrier<kWarp>(shared_address(&s.addition_empty[i]), 1);
      init_group_barrier<kWarp>(shared_address(&s.sums_full[i]), kWarps);
      init_barrier(shared_address(&s.turn_come[i]), 1);
      init_group_barrier<kWarp>(shared_address(&s.dq_added[i]), kWarps);
    }
    if constexpr (C::kHasHalves) {
      for (int i = 0; i < kQuarters; ++i) {
        init_barrier(shared_address(&s.quarter_full[i]), 1);
        init_group_barrier<kWarp>(shared_address(&s.quarter_empty[i]), kWarps);
      }
      init_group_barrier<kWarp>(shared_address(&s.values_empty), kWarps);
    }
  } else {
    for (int i = 0; i < kSlots; ++i) {
      init_group_barrier<kWarp>(shared_address(&s.dq_full[i]), 4);
      init_group_barrier<kWarp>(shared_address(&s.dq_empty[i]), 1);
    }
  }
  fence_barrier_init();
}

}  // namespace reynard::attention::cuda::sm90::bwd
