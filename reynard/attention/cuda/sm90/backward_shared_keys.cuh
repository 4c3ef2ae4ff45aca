#pragma once
// Above 128 dimensions: two warpgroups share the 64 keys of a block. Each computes P^T and dS^T of
// half of a step's queries, which both read from shared memory, and holds dK, dV and multiplies dQ
// of half of the dimensions.

#include "reynard/attention/cuda/sm90/backward_consumer.cuh"

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
class SharedKeysConsumer : Consumer<C> {
  using Base = Consumer<C>;
  using typename Base::Scalar;

 public:
  __device__ __forceinline__ SharedKeysConsumer(const Params& p, Shared<C>& s, int warpgroup)
      : Base(p, s, warpgroup) {}

  __device__ __forceinline__ void run() {
    take_tasks([this] { differentiate(); }, [this] { finish_task(); });
  }

 private:
  using Base::add, Base::pass_on_query_sums, Base::pass_on_turn, Base::wait_for_turn;
  using Base::arrive_warp, Base::bits_of, Base::differentiate_weights, Base::hide;
  using Base::buffer_, Base::count_, Base::dk_, Base::dscores_, Base::dv_, Base::dweights_;
  using Base::issue_dweights, Base::issue_scores, Base::keep_order, Base::key, Base::own_row;
  using Base::kAllBarrier, Base::key_sums_, Base::p_, Base::s_, Base::scores_, Base::stage_;
  using Base::pack, Base::shift_of_step;
  using Base::store_gradients, Base::store_pairs, Base::sum_over_queries;
  using Base::take_tasks, Base::wait_for_stage, Base::weigh;
  using Base::thread_, Base::warpgroup_, Base::weights_;

  static constexpr int kOwnPieces = C::kPieces / 2;  // of 64 dimensions
  static_assert(kOwnPieces == 2);

  // All of a task. Behind a step's dV and dK the two parts of its dQ are multiplied and the scores
  // of the next step, and each part is added when it is there: whose turn is next must not wait
  // long. Products are issued whether or not their sums are used, as in backward_ahead.cuh.
  __device__ __forceinline__ void differentiate() {
    issue_scores();
    wgmma_wait<0>();
    pin(scores_);
    for (bool is_last = false; !is_last;) {
      const Step& step = s_.steps[stage_.index];
      is_last = step.last_of_task;
      const float shift = shift_of_step();
      issue_dweights();
      if (step.sights[0] != Sight::kAll) hide();
      weigh(shift);
      keep_order(bits_of(scores_));
      wait(shared_address(&s_.dscores_empty[0]), buffer_.parity ^ 1);
      pack(scores_, weights_);
      store_pairs(weights_, s_.weights);
      wgmma_wait<0>();
      pin(dweights_);
      differentiate_weights();
      store_pairs(dscores_, s_.dscores[0]);
      fence_for_async();
      pass_on_query_sums();
      arrive_warp(&s_.dscores_full[0]);
      sum_over_queries();
      wait(shared_address(&s_.dscores_full[0]), buffer_.parity);
      issue_gradients();
      issue_dq(0, first_);
      wgmma_wait<1>();
      pin(dk_);
      pin(dv_);
      uint64_t* const done = &s_.stage_empty[stage_.index];
      stage_.next();
      if (!is_last) wait_for_stage();
      issue_dq(1, second_);
      issue_scores();
      wgmma_wait<2>();
      pin(first_);
      const Addition to = wait_for_turn(count_);
      add(to, warpgroup_ * kOwnPieces, first_);
      wgmma_wait<1>();
      pin(second_);
      arrive_warp(&s_.dscores_empty[0]);
      add(to, warpgroup_ * kOwnPieces + 1, second_);
      pass_on_turn(count_);
      arrive_warp(done);
      ++count_;
      buffer_.next();
      wgmma_wait<0>();
      pin(scores_);
    }
  }

  __device__ __forceinline__ void issue_gradients() {
    wgmma_fence();
    add_product(s_.weights, s_.douts[stage_.index], dv_);       // dV += P^T dO
    add_product(s_.dscores[0], s_.queries[stage_.index], dk_);  // dK += dS^T Q
    wgmma_commit();
  }
  // Left operand: 64 keys; right: this warpgroup's dimensions; depth: 64 queries.
  __device__ __forceinline__ void add_product(const char* left,
                                              const char* right,
                                              float (&sums)[C::kGradientDims / 2]) {
    const uint64_t a = swizzled_descriptor(shared_address(left), 16, 1024);
    const uint64_t b = swizzled_descriptor(
        shared_address(right) + warpgroup_ * kOwnPieces * kPieceBytes, kPieceBytes, 1024);
#pragma unroll
    for (int step = 0; step < kQueriesPerTile / 16; ++step) {
      wgmma<C::kGradientDims, Scalar, Contiguous::kDepth, Contiguous::kRows>(
          sums, advanced(a, step * 32), advanced(b, step * 16 * kRowBytes), 1);
    }
  }

  // A part of dQ = dS K over the 64 keys: 64 of this warpgroup's dimensions.
  __device__ __forceinline__ void issue_dq(int part, float (&sums)[32]) {
    const char* keys = s_.keys + (warpgroup_ * kOwnPieces + part) * C::kKeys * kRowBytes;
    const uint64_t ds = swizzled_descriptor(shared_address(s_.dscores[0]), 16, 1024);
    const uint64_t k = swizzled_descriptor(shared_address(keys), 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < C::kKeys / 16; ++step) {
      wgmma<64, Scalar, Contiguous::kRows, Contiguous::kRows>(
          sums, advanced(ds, step * 16 * kRowBytes), advanced(k, step * 16 * kRowBytes), step > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void finish_task() {
    const OwnKeys keys = {s_.task, key(0), thread_, warpgroup_ * C::kGradientDims};
    arrive_warp(&s_.keys_empty);
    if (p_.task.dkey_sums) store_key_sums(keys);
    store_gradients(keys);
  }

  // Each warpgroup has seen half of the queries.
  __device__ __forceinline__ void store_key_sums(const OwnKeys& keys) {
    double sums[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) sums[r] = sum_of_key(key_sums_[r]);
    sync_threads(kAllBarrier, C::kConsumers * kWarpgroup);  // those of the task before were read
    if (warpgroup_ == 1 && thread_ % 4 == 0) {
      s_.key_sums[own_row()] = sums[0];
      s_.key_sums[own_row() + 8] = sums[1];
    }
    sync_threads(kAllBarrier, C::kConsumers * kWarpgroup);
    if (warpgroup_ == 1 || thread_ % 4 != 0) return;
    store_key_sum(p_.task, keys.task, keys[0], sums[0] + s_.key_sums[own_row()]);
    store_key_sum(p_.task, keys.task, keys[1], sums[1] + s_.key_sums[own_row() + 8]);
  }

  float first_[32], second_[32];  // parts of dQ
};

}  // namespace reynard::attention::cuda::sm90::bwd
