#pragma once
// Above 128 dimensions: a warp that loads the quarters of the queries of a step, each as soon as
// its place is given back. The producer, which has described the step, would come too late.

#include "reynard/attention/cuda/sm90/backward_config.cuh"

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
__device__ void load_quarters(const Params& p, Shared<C>& s) {
  const int lane = threadIdx.x % 32;
  uint32_t parity = 1;  // of the places
  for (Stage<C::kStages> stage;; stage.next()) {
    wait(shared_address(&s.stage_full[stage.index]), stage.parity);
    const Step& step = s.steps[stage.index];
    if (step.stop) return;
    const bool has_queries = step.has_queries;
    TilePosition at = s.tiles[stage.index];
    __syncwarp();
    arrive_for_group(shared_address(&s.stage_empty[stage.index]), lane);
    if (!has_queries) continue;
    if (lane == 0) {
      const int half = at.dim;
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        const bool is_dout = quarter == kOtherDouts || quarter == kOwnDouts;
        const bool is_own = quarter == kOwnQueries || quarter == kOwnDouts;
        const uint32_t full = shared_address(&s.quarter_full[quarter]);
        wait(shared_address(&s.quarter_empty[quarter]), parity);
        arrive_expecting(full, C::kTaskPieces * kPieceBytes);
#pragma unroll
        for (int i = 0; i < C::kTaskPieces; ++i) {
          const int piece = is_own * C::kTaskPieces + i;
          at.dim = dim_of_piece<C>(half, piece);
          const char* to = (is_dout ? s.douts[0] : s.queries[0]) + piece * kPieceBytes;
          load_tile(shared_address(to), is_dout ? p.dout : p.q, at, full);
        }
      }
    }
    __syncwarp();
    parity ^= 1;
  }
}

}  // namespace reynard::attention::cuda::sm90::bwd
