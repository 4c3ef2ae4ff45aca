#pragma once
// Up to 128 dimensions, from 64 on: two warpgroups, whose registers hold the scores of the next
// step as well. Each multiplies its half of the dimensions of every dQ, and adds it straight from
// registers.

#include "reynard/attention/cuda/sm90/backward_own_keys.cuh"

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
class AheadConsumer : OwnKeysConsumer<C> {
  using Base = OwnKeysConsumer<C>;

 public:
  __device__ __forceinline__ AheadConsumer(const Params& p, Shared<C>& s, int warpgroup)
      : Base(p, s, warpgroup) {}

  __device__ __forceinline__ void run() {
    take_tasks([this] { differentiate(); }, [this] { finish_task(); });
  }

 private:
  using Base::add, Base::arrive_warp, Base::bits_of, Base::differentiate_weights, Base::hide;
  using Base::buffer_, Base::count_, Base::dweights_, Base::issue_dq, Base::issue_dweights;
  using Base::issue_gradients, Base::issue_scores, Base::keep_order, Base::pack;
  using Base::own_keys, Base::store_results, Base::sum_over_queries, Base::take_tasks;
  using Base::pass_on_query_sums, Base::pass_on_turn, Base::pending_buffer_, Base::pin_gradients;
  using Base::s_, Base::scores_, Base::shift_of_step, Base::stage_, Base::store_dscores;
  using Base::wait_for_pending, Base::wait_for_stage, Base::wait_for_turn, Base::warpgroup_;
  using Base::weigh, Base::weights_;

  // All of a task. The scores of the next step are multiplied behind the dQ of the step before,
  // which is added while they are. Products are issued whether or not their sums are used: ptxas
  // runs one after the other where one is under way on some paths only. Of two warpgroups one
  // seldom fills the time in which the other does not multiply: P is computed while dP is under
  // way, and dV and dK are issued without anything between their instructions.
  __device__ __forceinline__ void differentiate() {
    issue_scores();
    wgmma_wait<0>();
    pin(scores_);
    for (bool is_last = false; !is_last;) {
      const Step& step = s_.steps[stage_.index];
      is_last = step.last_of_task;
      const Sight sight = step.sights[warpgroup_];
      const float shift = shift_of_step();
      issue_dweights();
      if (sight != Sight::kAll) hide();
      weigh(shift);
      keep_order(bits_of(scores_));
      wgmma_wait<0>();
      pin(dweights_);
      pack(scores_, weights_);
      differentiate_weights();
      store_dscores();
      issue_gradients();
      keep_order(count_);
      pass_on_dscores();
      sum_over_queries();
      if (has_pending_) wait_for_pending();
      issue_dq();
      wgmma_wait<1>();
      pin_gradients();
      uint64_t* const done = &s_.stage_empty[stage_.index];
      stage_.next();
      if (!is_last) wait_for_stage();
      issue_scores();
      wgmma_wait<1>();
      if (has_pending_) add_pending();
      arrive_warp(done);
      pending_buffer_ = buffer_;
      buffer_.next();
      ++count_;
      has_pending_ = true;
      wgmma_wait<0>();
      pin(scores_);
    }
  }

  __device__ __forceinline__ void pass_on_dscores() {
    fence_for_async();
    pass_on_query_sums();
    arrive_warp(&s_.dscores_full[buffer_.index]);
  }

  __device__ __forceinline__ void add_pending() {
    pin(dweights_);
    arrive_warp(&s_.dscores_empty[pending_buffer_.index]);
    const int before = count_ - 1;
    add(wait_for_turn(before), warpgroup_, dweights_);
    pass_on_turn(before);
  }
  // The last that a task does with its keys, which will be overwritten.
  __device__ __forceinline__ void finish_addition() {
    if (!has_pending_) return arrive_warp(&s_.keys_empty);
    wait_for_pending();
    issue_dq();
    wgmma_wait<0>();
    arrive_warp(&s_.keys_empty);
    add_pending();
    has_pending_ = false;
  }

  __device__ __forceinline__ void finish_task() {
    const OwnKeys keys = own_keys();
    finish_addition();
    store_results(keys);
  }

  bool has_pending_ = false;  // whether the dQ of the step before is not added yet
};

}  // namespace reynard::attention::cuda::sm90::bwd
