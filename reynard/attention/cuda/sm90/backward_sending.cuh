#pragma once
// Above 64 dimensions: two warpgroups, whose registers hold the scores of the next step as well.
// Each multiplies 64 dimensions of every dQ and adds them straight from registers. Rows of dK and
// dV leave by the copy engine: stores of registers would wait behind those additions.

#include "reynard/attention/cuda/sm90/backward_own_keys.cuh"

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
class SendingConsumer : protected OwnKeysConsumer<C> {
  using Base = OwnKeysConsumer<C>;

 protected:
  using Base::add, Base::arrive_warp, Base::bits_of, Base::buffer_, Base::dweights_, Base::hide;
  using Base::kAllBarrier, Base::keep_order, Base::pass_on_query_sums, Base::pass_on_turn;
  using Base::s_, Base::scores_, Base::store_pairs, Base::thread_, Base::wait_for_turn;
  using Base::warpgroup_, Base::weigh;
  using typename Base::Scalar;

  using Base::Base;

  // P, while dP is under way, and dP.
  __device__ __forceinline__ void weigh_beside_dweights(Sight sight, float shift) {
    if (sight != Sight::kAll) hide();
    weigh(shift);
    keep_order(bits_of(scores_));
    wgmma_wait<0>();
    pin(dweights_);
  }

  __device__ __forceinline__ void pass_on_dscores() {
    fence_for_async();
    pass_on_query_sums();
    arrive_warp(&s_.dscores_full[buffer_.index]);
  }

  // count: how many steps came before the one that is added.
  __device__ __forceinline__ void add_dq(int count) {
    add(wait_for_turn(count), warpgroup_, dweights_);
    pass_on_turn(count);
  }

  // Rows of some pieces of dK or dV, through shared memory that nobody else needs any more.
  // place_of(piece): for 64 dimensions of all keys of the block.
  template <int kFirst, int kEnd, class PlaceOf>
  __device__ __forceinline__ void send_rows(const CUtensorMap& to,
                                            const KeyTask& task,
                                            const float (&sums)[C::kGradientDims / 2],
                                            float factor,
                                            const PlaceOf& place_of) const {
    constexpr int kPairs = kOwnKeys * 64 / kWarpgroup / 2;  // of a thread and piece
    take_places_back();
#pragma unroll
    for (int piece = kFirst; piece < kEnd; ++piece) {
      uint32_t pairs[kPairs];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const float* pair = sums + 2 * (piece * kPairs + i);
        pairs[i] = packed(pair[0] * factor, pair[1] * factor, Scalar());
      }
      store_pairs(pairs, place_of(piece));
    }
    fence_for_async();
    sync_warpgroup();
    if (thread_ != 0) return;
    const int row = warpgroup_ * kOwnKeys;
    for (int piece = kFirst; piece < kEnd; ++piece) {
      const TilePosition at = {
          task.half * C::kGradientDims + piece * 64, task.n * C::kKeys + row, task.h, task.b};
      store_tile(to, shared_address(place_of(piece)) + row * kRowBytes, at);
    }
    commit_stores();
  }
  __device__ __forceinline__ void sync_warpgroup() const {
    sync_threads(kAllBarrier + 1 + warpgroup_, kWarpgroup);
  }
  // When the copy engine has read what was sent before.
  __device__ __forceinline__ void take_places_back() const {
    if (thread_ == 0) wait_stores_read();
    sync_warpgroup();
  }
};

}  // namespace reynard::attention::cuda::sm90::bwd
