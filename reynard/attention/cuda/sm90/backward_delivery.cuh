#pragma once
// The delivering side of the backward kernel: a warp for each slot adds parts of dQ to global
// memory, each in its turn.

#include "reynard/attention/cuda/sm90/backward_config.cuh"
#include "reynard/attention/cuda/sm90/backward_sums.cuh"

namespace reynard::attention::cuda::sm90::bwd {

__device__ __forceinline__ int load_acquire(const int* address) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(int* address, int value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
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

__device__ __forceinline__ void add_query_sums(const Params& p,
                                               const SplitSum (&sums)[kSumParts][kQueriesPerTile],
                                               int64_t head,
                                               int first_query,
                                               int lane) {
  const int Tq = p.task.problem.Tq;
#pragma unroll
  for (int i = lane; i < kQueriesPerTile; i += 32) {
    if (first_query + i >= Tq) continue;
    double sum = 0;
#pragma unroll
    for (const auto& part : sums) sum += whole(part[i]);
    atomicAdd(p.task.dquery_sums + head * Tq + first_query + i, sum);
  }
}

// Which dimensions the parts have that pass through one slot: all, of every second step; half of
// them; or two quarters by turns.
template <class C>
__device__ __forceinline__ int piece_of(int slot, uint32_t parity) {
  if constexpr (C::kSharesKeys) return 2 * slot + static_cast<int>(parity);
  return C::kTakesTurns ? 0 : slot;
}

// The parts that pass through one slot.
template <class C>
__device__ void deliver(const Params& p, Shared<C>& s, int slot) {
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
    const int piece = piece_of<C>(slot, parity);
    const int64_t index = (head * p.num_steps + part.m) * C::kPieces + piece;
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
    if (p.task.dquery_sums && piece == 0) {  // one part of each query brings them
      add_query_sums(p, s.dq_sums[slot], head, part.m * kQueriesPerTile, lane);
    }
    __syncwarp();
    if (lane == 0) {
      wait_stores_read();
      arrive(shared_address(&s.dq_empty[slot]));
      announcement = {turn, part.turn + 1};
    }
  }
}

}  // namespace reynard::attention::cuda::sm90::bwd
