#pragma once
// Above 128 dimensions: a warp that loads the quarters of the queries of a step, each as soon as
// its place is given back. The producer, which has described the step, would come too late.

#include "reynard/attention/cuda/sm90/backward_config.cuh"

namespace reynard::attention::cuda::sm90::bwd {

// One quarter, by a thread.
template <class C>
__device__ void load_quarter(
    const Params& p, Shared<C>& s, const QuarterTile& tile, int quarter, uint32_t parity) {
  const bool is_dout = quarter == kOtherDouts || quarter == kOwnDouts;
  const bool is_own = quarter == kOwnQueries || quarter == kOwnDouts;
  const uint32_t full = shared_address(&s.quarter_full[quarter]);
  wait(shared_address(&s.quarter_empty[quarter]), parity);
  arrive_expecting(full, C::kTaskPieces * kPieceBytes);
#pragma unroll
  for (int i = 0; i < C::kTaskPieces; ++i) {
    const int piece = is_own * C::kTaskPieces + i;
    const char* to = (is_dout ? s.douts[0] : s.queries[0]) + piece * kPieceBytes;
    const TilePosition at = {
        dim_of_piece<C>(tile.half, piece), tile.m * kQueriesPerTile, tile.h, tile.b};
    load_tile(shared_address(to), is_dout ? p.dout : p.q, at, full);
  }
}

template <class C>
__device__ void load_quarters(const Params& p, Shared<C>& s) {
  const int lane = threadIdx.x % 32;
  uint32_t parity = 1;  // of the places
  for (Stage<C::kStages> stage;; stage.next()) {
    wait(shared_address(&s.stage_full[stage.index]), stage.parity);
    const Step& step = s.steps[stage.index];
    if (step.stop) return;
    const bool has_queries = step.has_queries;
    const QuarterTile tile = s.tiles[stage.index];
    __syncwarp();
    arrive_for_group(shared_address(&s.stage_empty[stage.index]), lane);
    if (!has_queries) continue;
    if (lane == 0) {
#pragma unroll
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        load_quarter<C>(p, s, tile, quarter, parity);
      }
    }
    __syncwarp();
    parity ^= 1;
  }
}

}  // namespace reynard::attention::cuda::sm90::bwd
