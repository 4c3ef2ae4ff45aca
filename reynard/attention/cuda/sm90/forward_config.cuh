#pragma once
// What the warps of the forward kernel share: its configuration, its shared memory and its
// parameters.

#include "reynard/attention/cuda/registers.cuh"
#include "reynard/attention/cuda/sm90/copy.cuh"
#include "reynard/attention/cuda/sm90/plan.h"

#include <cstdint>

namespace reynard::attention::cuda::sm90::fwd {

// kDim: head dimension rounded up to 64, 128 or 256.
template <int kDim_, class Scalar_, bool kGated_>
struct Config {
  static constexpr int kDim = kDim_;
  using Scalar = Scalar_;
  static constexpr bool kGated = kGated_;
  // Warpgroups hide each other's softmax and share what is read; sums of 64 x 256 leave registers
  // for two.
  static constexpr int kWarpgroups = kDim == 256 ? 2 : 3;
  static_assert(kWarpgroups <= QueryTask::kMostGroups);
  // Keys of a block: beside sums of 64 x 128 and more registers are left for 64 scores a row.
  static constexpr int kKeys = kDim == 64 ? kKeysPerBlock : 64;
  static constexpr int kBlocksPerRecord = kKeysPerBlock / kKeys;
  // Sums of weights tell too when a reference must be raised, for less; but the scores must then be
  // kept until the weights are made, which 64 x 128 of them cannot.
  static constexpr bool kLooksForMaxima = kDim == 64;
  static constexpr int kStages = kDim == 128 ? 3 : 2;  // above 64 dimensions as many as fit
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kThreads = (kWarpgroups + 1) * kWarpgroup;
  static constexpr int kConsumerRegisters = kWarpgroups == 3 ? 160 : 240;
  static constexpr int kProducerRegisters = kWarpgroups == 3 ? 32 : 24;
  static constexpr int kHalves = kDim / 64;  // tiles of 64 dimensions
  static constexpr int kQueryBytes = kRows * kDim * 2, kKeyBytes = kKeys * kDim * 2;
  static constexpr int kQuerySlots = kDim <= 128 ? 2 : 1;  // tasks whose queries are held
  static constexpr int kQuerySumBytes = kGated ? kRows * sizeof(SplitSum) : 0;
};

template <class C>
struct alignas(1024) Shared {
  char queries[C::kQuerySlots][C::kQueryBytes];
  char keys[C::kStages][C::kKeyBytes];
  // Before the values: an operand that repeats itself counts as longer than it is when addresses
  // are checked (compute-sanitizer).
  alignas(128) BiasRecord bias[C::kStages];
  alignas(1024) char values[C::kStages][C::kKeyBytes];
  // What meets the biases: a left operand of 64 rows that are all {1, 1, 1, 0 ...}.
  alignas(128) SplitNumber ones[8], zeros[8];
  alignas(128) SplitSum query_sums[C::kQuerySlots][C::kRows];
  QueryTask tasks[C::kQuerySlots], next_task;
  uint64_t task_wanted, task_known;
  uint64_t query_full[C::kQuerySlots], query_empty[C::kQuerySlots];
  uint64_t key_full[C::kStages], key_empty[C::kStages];
  uint64_t value_full[C::kStages], value_empty[C::kStages];
};

struct Params {
  CUtensorMap q, k, v, out;
  ForwardTask task;
  const BiasRecord* records;
  const SplitSum* query_sums;  // (B, H, num_query_blocks kRows)
  Plan plan;
  int num_tasks, num_query_blocks, num_records;  // records of a head
};

template <class C>
__device__ void prepare_shared(Shared<C>& s) {
  init_barrier(shared_address(&s.task_wanted), 1);
  init_barrier(shared_address(&s.task_known), 1);
  for (int i = 0; i < C::kQuerySlots; ++i) {
    init_barrier(shared_address(&s.query_full[i]), 1);
    init_group_barrier<kWarpgroup>(shared_address(&s.query_empty[i]), C::kWarpgroups);
  }
  for (int i = 0; i < C::kStages; ++i) {
    init_barrier(shared_address(&s.key_full[i]), 1);
    init_group_barrier<kWarp>(shared_address(&s.key_empty[i]), C::kWarpgroups * 4);
    init_barrier(shared_address(&s.value_full[i]), 1);
    init_group_barrier<kWarp>(shared_address(&s.value_empty[i]), C::kWarpgroups * 4);
  }
  for (int i = 0; i < 8; ++i) {
    s.ones[i] = s.zeros[i] = {};
    for (uint16_t& part : s.ones[i].parts) part = 0x3F80;  // 1 as bf16
  }
  fence_barrier_init();
  fence_for_async();
}

}  // namespace reynard::attention::cuda::sm90::fwd
