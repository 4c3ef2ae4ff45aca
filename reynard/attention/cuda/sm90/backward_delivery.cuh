#pragma once
// The delivering side of the backward kernel: a warp for each slot adds parts of dQ to global
// memory, each in its turn.

#include "reynard/attention/cuda/sm90/backward_config.cuh"
#include "reynard/attention/cuda/sm90/backward_turns.cuh"

namespace reynard::attention::cuda::sm90::bwd {

// f32 values in a row; a multiple of 16 bytes.
__device__ __forceinline__ void add_floats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void store_floats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(from),
               "r"(bytes)
               : "memory");
}

// Announces a part whose addition was queued before, when it is done. While the next part waits for
// its own turn nothing may be held back: others may wait for this one.
struct Announcement {
  int* turn = nullptr;
  int value = 0;

  // kPending: additions queued since.
  template <int kPending>
  __device__ __forceinline__ void publish() {
    if (!turn) return;
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
    store_release(turn, value);
    turn = nullptr;
  }
};

// The parts that pass through one slot: of every second step.
template <class C>
__device__ void deliver(const Params& p, Shared<C>& s, int slot) {
  static_assert(C::kPieces == 1);
  const int lane = threadIdx.x % 32;
  const uint32_t full = shared_address(&s.dq_full[slot]);
  Announcement announcement;  // of lane 0
  for (uint32_t parity = 0;; parity ^= 1) {
    if (lane == 0 && !is_over(full, parity)) announcement.publish<0>();
    wait(full, parity);
    const Delivery part = s.deliveries[slot];
    if (part.stop) {
      if (lane == 0) announcement.publish<0>();
      return;
    }
    const int64_t head = int64_t{part.from.b} * p.task.problem.H + part.from.h;
    const int64_t index = head * p.num_steps + part.m;
    int* const turn = p.turns + index;
    if (lane == 0) {
      if (load_acquire(turn) != part.turn) {
        announcement.publish<0>();
        while (load_acquire(turn) != part.turn) {
        }
      }
      float* sums = p.dq_sums + index * kPartFloats;
      const uint32_t own = shared_address(s.dq[slot]);
      if (part.turn == 0) {
        store_floats(sums, own, kPartFloats * 4);
      } else {
        add_floats(sums, own, kPartFloats * 4);
      }
      commit_stores();
      announcement.publish<1>();
    }
    __syncwarp();
    if (p.task.dquery_sums) {
      add_query_sums(p, head, part.m * kQueriesPerTile, lane, [&](int i) {
        static_assert(kSumParts == 2);
        return whole(s.dq_sums[slot][0][i]) + whole(s.dq_sums[slot][1][i]);
      });
    }
    __syncwarp();
    if (lane == 0) {
      wait_stores_read();
      announcement = {turn, part.turn + 1};
    }
    arrive_for_group(shared_address(&s.dq_empty[slot]), lane);
  }
}

}  // namespace reynard::attention::cuda::sm90::bwd
