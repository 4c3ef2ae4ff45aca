#pragma once
// Whose turn it is to add to the dQ of a step: a counter in global memory has the number of key
// blocks that have.

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

// sum_of(i): the sum of dS of the i-th query.
template <class Sum>
__device__ __forceinline__ void add_query_sums(
    const Params& p, int64_t head, int first_query, int lane, const Sum& sum_of) {
  const int Tq = p.task.problem.Tq;
#pragma unroll
  for (int i = lane; i < kQueriesPerTile; i += 32) {
    if (first_query + i >= Tq) continue;
    atomicAdd(p.task.dquery_sums + head * Tq + first_query + i, sum_of(i));
  }
}

// Where consumers add to dQ themselves: one of the warps that take steps by turns. It says when the
// turn of its step has come, adds the sums of dS to the gradient of the gates while consumers add,
// and then gives the turn to the next.
template <class C>
__device__ void keep_turns(const Params& p, Shared<C>& s, int first) {
  const int lane = threadIdx.x % 32;
  for (int count = first;; count += kDqWarps) {
    const int place = count % kPlaces;
    const uint32_t parity = count / kPlaces % 2;
    wait(shared_address(&s.addition_full[place]), parity);
    const Addition to = s.additions[place];
    if (to.stop) return;
    wait(shared_address(&s.sums_full[place]), parity);
    int* const turn = p.turns + to.tile;
    if (lane == 0) {
      while (load_acquire(turn) != to.turn) {
      }
      arrive(shared_address(&s.turn_come[place]));
    }
    __syncwarp();
    if (p.task.dquery_sums && to.tile % C::kHalves == 0) {  // of the first half's dS
      const int first_query = to.m * kQueriesPerTile;
      add_query_sums(p, to.tile / (p.num_steps * C::kHalves), first_query, lane, [&](int i) {
        SplitSum sum;
#pragma unroll
        for (const auto& of_warp : s.query_sums[place]) add_to(sum, of_warp[i]);
        return whole(sum);
      });
    }
    wait(shared_address(&s.dq_added[place]), parity);
    __syncwarp();
    if (lane == 0) store_release(turn, to.turn + 1);
    arrive_for_group(shared_address(&s.addition_empty[place]), lane);
  }
}

}  // namespace reynard::attention::cuda::sm90::bwd
