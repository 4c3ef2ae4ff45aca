#pragma once
// Above 128 dimensions registers hold dK and dV of half of them: a task is one half, for which it
// computes S and dP of all dimensions again, seven products for five. It adds to dQ half as often
// as a task of all dimensions, of half as many keys, would for the same scores.
//
// Keys and values leave shared memory to one stage of queries, whose quarters are loaded again as
// they are given back (backward_quarters.cuh): those of the dimensions of the other half after S
// and dP, its own after dK and dV. Only one place is left for dS, so that dQ is multiplied within
// its step.

#include "reynard/attention/cuda/sm90/backward_sending.cuh"

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
class HalvesConsumer : SendingConsumer<C> {
  using Base = SendingConsumer<C>;
  static_assert(C::kBuffers == 1 && C::kTileStages == 1 && C::kTaskPieces == 2);

 public:
  __device__ __forceinline__ HalvesConsumer(const Params& p, Shared<C>& s, int warpgroup)
      : Base(p, s, warpgroup) {}

  __device__ __forceinline__ void run() {
    take_tasks([this] { differentiate(); }, [this] { finish_task(); });
    if (thread_ == 0) wait_stores();
  }

 private:
  using Base::add_dq, Base::add_product, Base::add_split_numbers, Base::arrive_warp;
  using Base::count_, Base::differentiate_weights, Base::dk_, Base::dscores_, Base::dv_;
  using Base::dweights_, Base::give_values_back, Base::issue_dq, Base::keep_order;
  using Base::kFirstOwnPiece, Base::multiply_rows, Base::own_keys, Base::p_, Base::pack;
  using Base::pass_on_dscores, Base::s_, Base::scores_, Base::send_rows, Base::shift_of_step;
  using Base::stage_, Base::store_head_sums, Base::store_key_sums, Base::store_pairs;
  using Base::sum_over_queries, Base::take_places_back, Base::take_tasks, Base::thread_;
  using Base::wait_for_stage, Base::warpgroup_, Base::weigh_beside_dweights, Base::weights_;

  // All of a task. The first half of the scores of the next step is multiplied while the other
  // warpgroup may not have left its dS, the second behind dQ, which is added meanwhile. Products
  // are issued whether or not their sums are used, as in backward_ahead.cuh: those of the last step
  // are of whatever lies in the place of the queries.
  __device__ __forceinline__ void differentiate() {
    begin_scores(count_, /*is_step=*/true);
    end_scores(count_, /*is_step=*/true);
    take_places_back();  // that of rows of the task before will hold dS
    wgmma_wait<0>();
    pin(scores_);
    give_back(kOtherQueries);
    for (bool is_last = false; !is_last;) {
      const Step& step = s_.steps[stage_.index];
      is_last = step.last_of_task;
      const Sight sight = step.sights[warpgroup_];
      const float shift = shift_of_step();
      issue_dweights();
      weigh_beside_dweights(sight, shift);
      give_back(kOtherDouts);
      if (is_last) give_values_back();
      pack(scores_, weights_);
      differentiate_weights();
      wait_for_place();
      store_pairs(dscores_, s_.dscores[0]);
      issue_gradients();
      keep_order(count_);
      pass_on_dscores();
      sum_over_queries();
      uint64_t* const done = &s_.stage_empty[stage_.index];
      stage_.next();
      wgmma_wait<1>();
      pin(dk_);
      give_back(kOwnQueries);
      begin_scores(count_ + 1, !is_last);
      wgmma_wait<1>();
      pin(dv_);
      give_back(kOwnDouts);
      wait(shared_address(&s_.dscores_full[0]), count_ % 2);
      issue_dq();
      if (!is_last) wait_for_stage();
      end_scores(count_ + 1, !is_last);
      wgmma_wait<1>();
      pin(dweights_);
      arrive_warp(&s_.dscores_empty[0]);
      if (!is_last) give_back(kOtherQueries);
      add_dq(count_);
      arrive_warp(done);
      ++count_;
      wgmma_wait<0>();
      pin(scores_);
    }
  }

  // Quarters of the queries. count: of steps before the one they are of.

  __device__ __forceinline__ void wait_for(Quarter quarter, int count) const {
    wait(shared_address(&s_.quarter_full[quarter]), count % 2);
  }
  __device__ __forceinline__ void give_back(Quarter quarter) const {
    arrive_warp(&s_.quarter_empty[quarter]);
  }

  __device__ __forceinline__ void begin_scores(int count, bool is_step) {
    if (is_step) wait_for(kOtherQueries, count);
    wgmma_fence();
    multiply_rows<0, kFirstOwnPiece>(s_.keys, s_.queries[0], scores_);
    wgmma_commit();
  }
  __device__ __forceinline__ void end_scores(int count, bool is_step) {
    if (is_step) wait_for(kOwnQueries, count);
    wgmma_fence();
    multiply_rows<kFirstOwnPiece, C::kPieces>(s_.keys, s_.queries[0], scores_);
    add_split_numbers(s_.records[stage_.index].logits, scores_);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_dweights() {
    wait_for(kOtherDouts, count_);
    wgmma_fence();
    multiply_rows<0, kFirstOwnPiece>(s_.values, s_.douts[0], dweights_);
    wait_for(kOwnDouts, count_);
    wgmma_fence();
    multiply_rows<kFirstOwnPiece, C::kPieces>(s_.values, s_.douts[0], dweights_);
    add_split_numbers(s_.records[stage_.index].deltas, dweights_);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_gradients() {
    wgmma_fence();
    add_product(dscores_, s_.queries[0], dk_);  // dK += dS^T Q
    wgmma_commit();
    add_product(weights_, s_.douts[0], dv_);  // dV += P^T dO
    wgmma_commit();
  }

  __device__ __forceinline__ void finish_task() {
    const OwnKeys keys = own_keys();
    arrive_warp(&s_.keys_empty);
    if (keys.task.half == 0) store_key_sums(keys);
    if (p_.head_sums) return store_head_sums(keys);
    wait_for_place();
    send(p_.dv, keys.task, dv_, 1);
    send(p_.dk, keys.task, dk_, p_.task.problem.scale);
  }
  // Rows, through the place of dS while the keys of the next task are loaded.
  __device__ __forceinline__ void send(const CUtensorMap& to,
                                       const KeyTask& task,
                                       const float (&sums)[C::kGradientDims / 2],
                                       float factor) const {
    const auto place = [this](int) { return s_.dscores[0]; };
    this->template send_rows<0, 1>(to, task, sums, factor, place);
    this->template send_rows<1, 2>(to, task, sums, factor, place);
  }
  // Until the dQ of the step before is multiplied.
  __device__ __forceinline__ void wait_for_place() const {
    wait(shared_address(&s_.dscores_empty[0]), count_ % 2 ^ 1);
  }
};

}  // namespace reynard::attention::cuda::sm90::bwd
