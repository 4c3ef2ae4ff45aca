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

// Where consumers add to dQ themselves: a warp for the steps of one stage says when their turn has
// come, adds the sums of dS to the gradient of the gates while they add, and then gives the turn to
// the next.
template <class C>
__device__ void keep_turns(const Params& p, Shared<C>& s, int stage) {
  const int lane = threadIdx.x % 32;
  uint32_t own_parity = 0;  // of steps with queries
  for (uint32_t parity = 0;; parity ^= 1) {
    wait(shared_address(&s.stage_full[stage]), parity);
    const Step step = s.steps[stage];
    __syncwarp();
    if (lane == 0) {
      // Before the stage may be filled again: whoever waits then must find this phase over.
      if (!step.has_queries) arrive(shared_address(&s.turn_come[stage]));
      arrive(shared_address(&s.stage_empty[stage]));
    }
    if (step.stop) return;
    if (!step.has_queries) continue;
    wait(shared_address(&s.sums_full[stage]), own_parity);
    int* const turn = p.turns + step.tile;
    if (lane == 0) {
      while (load_acquire(turn) != step.turn) {
      }
      arrive(shared_address(&s.turn_come[stage]));
    }
    __syncwarp();
    if (p.task.dquery_sums) {
      const int first_query = step.m * kQueriesPerTile;
      add_query_sums(p, step.tile / p.num_steps, first_query, lane, [&](int i) {
        SplitSum sum;
#pragma unroll
        for (const auto& of_warp : s.query_sums[parity][stage]) add_to(sum, of_warp[i]);
        return whole(sum);
      });
    }
    wait(shared_address(&s.dq_added[stage]), own_parity);
    own_parity ^= 1;
    __syncwarp();
    if (lane == 0) store_release(turn, step.turn + 1);
  }
}

}  // namespace reynard::attention::cuda::sm90::bwd
