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
    stop_slot(warpgroup_, 2 * count_);
  }

 private:
  using Base::arrive_warp, Base::bits_of, Base::differentiate_weights, Base::hide;
  using Base::buffer_, Base::count_, Base::dk_, Base::dscores_, Base::dv_, Base::dweights_;
  using Base::issue_dweights, Base::issue_scores, Base::keep_order, Base::key, Base::own_row;
  using Base::kAllBarrier, Base::key_sums_, Base::p_, Base::s_, Base::scores_, Base::stage_;
  using Base::pack, Base::release_stage, Base::shift_of_step, Base::stop_slot;
  using Base::store_gradients, Base::store_pairs, Base::store_query_sums, Base::sum_over_queries;
  using Base::take_tasks, Base::wait_for_slot, Base::wait_for_stage, Base::weigh;
  using Base::thread_, Base::warpgroup_, Base::weights_;

  static constexpr int kOwnPieces = C::kPieces / 2;  // of 64 dimensions
  static_assert(kOwnPieces == 2);

  // All of a task. Its two parts of dQ pass through one place, a step's first behind its dV and dK,
  // the second in the next step, and each is sent while the matrix unit has other things to do. The
  // scores of the next step are multiplied behind the first part. Products are issued whether or
  // not their sums are used, as in backward_own_keys.cuh.
  __device__ __forceinline__ void differentiate() {
    issue_scores();
    wgmma_wait<0>();
    pin(scores_);
    bool is_first = true;
    for (bool is_last = false; !is_last; is_first = false) {
      const Step& step = s_.steps[stage_.index];
      is_last = step.last_of_task;
      const float shift = shift_of_step();
      issue_dq(1, second_);
      wait(shared_address(&s_.dout_full), buffer_.parity);
      issue_dweights(s_.douts[0]);
      if (step.sights[0] != Sight::kAll) hide();
      weigh(shift);
      keep_order(bits_of(scores_));
      wgmma_wait<1>();
      pin(second_);
      if (!is_first) arrive_warp(&s_.dscores_empty[0]);
      wait(shared_address(&s_.dscores_empty[0]), buffer_.parity ^ 1);
      pack(scores_, weights_);
      store_pairs(weights_, s_.weights);
      wgmma_wait<0>();
      pin(dweights_);
      differentiate_weights();
      store_pairs(dscores_, s_.dscores[0]);
      store_query_sums(0);
      arrive_warp(&s_.dscores_full[0]);
      note_step();
      sum_over_queries();
      wait(shared_address(&s_.dscores_full[0]), buffer_.parity);
      issue_gradients();
      if (!is_first) send_second();
      issue_dq(0, first_);
      const SplitSum sum = Base::query_sum(0);
      wgmma_wait<1>();
      pin(dk_);
      pin(dv_);
      arrive_warp(&s_.dout_empty);
      release_stage();
      if (!is_last) wait_for_stage();
      issue_scores();
      wgmma_wait<1>();
      send_first(sum);
      wgmma_wait<0>();
      pin(scores_);
    }
    issue_dq(1, second_);
    wgmma_wait<0>();
    pin(second_);
    arrive_warp(&s_.dscores_empty[0]);
    send_second();
  }

  // What the parts of this step's dQ will be delivered as.
  __device__ __forceinline__ void note_step() {
    if (thread_ != 0) return;
    const Step& step = s_.steps[stage_.index];
    s_.pending[warpgroup_][count_ % 2] = {s_.task, step.m, step.turn, false};
  }

  __device__ __forceinline__ void issue_gradients() {
    wgmma_fence();
    add_product(s_.weights, s_.douts[0], dv_);                  // dV += P^T dO
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

  // Of the step that was just multiplied, and of the one before. Only the first part's sums of
  // queries are read.
  __device__ __forceinline__ void send_first(const SplitSum& sum) {
    pin(first_);
    wait_for_slot(warpgroup_, 2 * count_);
    s_.dq_sums[warpgroup_][thread_ / kQueriesPerTile][thread_ % kQueriesPerTile] = sum;
    post(first_, count_);
    ++count_;
    buffer_.next();
  }
  __device__ __forceinline__ void send_second() {
    wait_for_slot(warpgroup_, 2 * count_ - 1);
    post(second_, count_ - 1);
  }
  __device__ __forceinline__ void post(const float (&part)[32], int step) {
    store_parts(s_.dq[warpgroup_], thread_, part);
    if (thread_ == 0) s_.deliveries[warpgroup_] = s_.pending[warpgroup_][step % 2];
    fence_for_async();
    arrive_warp(&s_.dq_full[warpgroup_]);
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
