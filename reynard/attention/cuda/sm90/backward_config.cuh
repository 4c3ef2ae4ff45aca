#pragma once
// What the warps of the backward kernel share: its configuration, its shared memory and its
// parameters.
//
// A step is what a block of keys does with 64 queries. Its dQ has a part for each 64 dimensions.
//
// Up to 128 dimensions a warpgroup has keys of its own; above, two share 64 keys, of which each
// holds dK and dV of half of the dimensions.

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
  static constexpr bool kSharesKeys = kPieces > 2;
  // Warpgroups: as many as the registers hold dK and dV of.
  static constexpr int kConsumers = kPieces == 1 ? 3 : 2;
  static constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
  // With fewer than 240 where keys are shared ptxas runs one product after the other (C7512).
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : kSharesKeys ? 240 : 232;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : kSharesKeys ? 24 : 40;
  static constexpr int kKeyGroups = kSharesKeys ? 1 : kConsumers;  // of 64 keys
  static constexpr int kKeys = kKeyGroups * kOwnKeys;              // of a key block
  static constexpr int kKeyBytes = kKeys * kDim * 2;
  // Of a warpgroup: the queries whose scores it computes, and the dimensions of its dK and dV.
  static constexpr int kScoreQueries = kSharesKeys ? kQueriesPerTile / 2 : kQueriesPerTile;
  static constexpr int kGradientDims = kSharesKeys ? kDim / 2 : kDim;
  static constexpr int kStages = kSharesKeys ? 2 : 3;            // of queries: as many as fit
  static constexpr int kBuffers = kSharesKeys ? 1 : kConsumers;  // of dS
  static constexpr int kHeadParts = kKeyGroups * 2 * kPieces;    // of dK and dV of a key block
  // Who multiplies dQ of a step and how it reaches global memory: one warpgroup, through shared
  // memory and warps that deliver it; or each its half of the dimensions, straight from registers,
  // and warps that keep turns say when theirs has come.
  static constexpr bool kDelivers = kPieces == 1;
  // Whether registers are left for the scores of the next step and for the biases of keys.
  static constexpr bool kRunsAhead = kConsumers == 2;
  // Who runs ahead multiplies its half of each dQ, who goes step by step all of every third.
  static_assert(kRunsAhead != kDelivers);
};

// A key block of one head.
struct KeyTask {
  int b, h, n;
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
  int tile;  // of all: (b H + h) steps + m
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
// What warpgroups that share keys exchange.
template <class C>
struct ExchangeShared : TurnShared<C> {
  alignas(1024) char weights[C::kKeys * kRowBytes];  // [key][query]
  double key_sums[kOwnKeys];
};
template <class C>
using GradientShared =
    std::conditional_t<C::kDelivers,
                       DeliveryShared<C>,
                       std::conditional_t<C::kSharesKeys, ExchangeShared<C>, TurnShared<C>>>;

template <class C>
struct alignas(1024) Shared : GradientShared<C> {
  alignas(1024) char keys[C::kKeyBytes];
  char values[C::kKeyBytes];
  char queries[C::kStages][C::kPieces * kPieceBytes];
  char douts[C::kStages][C::kPieces * kPieceBytes];
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
  int* turns;      // (B, H, steps): key blocks that added to its dQ
  int* next_part;  // of dQ that becomes rows; 0 before
  float* dq_sums;  // (B, H, steps, pieces) of parts, unscaled
  // Where heads share keys: (B, H, key blocks) of the dK and dV of one head, else null.
  float* head_sums;
  int num_tasks, num_steps, num_key_blocks;
};

template <class C>
__device__ void prepare_shared(Shared<C>& s) {
  constexpr int kWarps = C::kConsumers * 4;
  init_barrier(shared_address(&s.keys_full), 1);
  init_group_barrier<kWarp>(shared_address(&s.keys_empty), kWarps);
  for (int i = 0; i < C::kStages; ++i) {
    init_barrier(shared_address(&s.stage_full[i]), 1);
    init_group_barrier<kWarp>(shared_address(&s.stage_empty[i]), kWarps);
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
  } else {
    for (int i = 0; i < kSlots; ++i) {
      init_group_barrier<kWarp>(shared_address(&s.dq_full[i]), 4);
      init_group_barrier<kWarp>(shared_address(&s.dq_empty[i]), 1);
    }
  }
  fence_barrier_init();
}

}  // namespace reynard::attention::cuda::sm90::bwd
