#pragma once
// Up to 128 dimensions, from 64 on: the dQ of a step is multiplied in the next one, when the dS of
// the other warpgroup is there.

#include "reynard/attention/cuda/sm90/backward_sending.cuh"

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
class AheadConsumer : SendingConsumer<C> {
  using Base = SendingConsumer<C>;

 public:
  __device__ __forceinline__ AheadConsumer(const Params& p, Shared<C>& s, int warpgroup)
      : Base(p, s, warpgroup) {}

  __device__ __forceinline__ void run() {
    take_tasks([this] { differentiate(); }, [this] { finish_task(); });
    if (thread_ == 0) wait_stores();
  }

 private:
  using Base::add_dq, Base::arrive_warp, Base::differentiate_weights;
  using Base::buffer_, Base::count_, Base::dk_, Base::dv_, Base::dweights_, Base::issue_dq;
  using Base::issue_dweights, Base::issue_gradients, Base::issue_scores;
  using Base::keep_order, Base::own_keys, Base::p_, Base::pack, Base::pass_on_dscores;
  using Base::pending_buffer_, Base::pin_gradients, Base::s_, Base::scores_, Base::send_rows;
  using Base::shift_of_step, Base::stage_, Base::store_dscores, Base::store_head_sums;
  using Base::store_key_sums, Base::sum_over_queries, Base::take_places_back, Base::take_tasks;
  using Base::thread_, Base::wait_for_pending, Base::wait_for_stage, Base::warpgroup_;
  using Base::weigh_beside_dweights, Base::weights_;

  // All of a task. The scores of the next step are multiplied behind the dQ of the step before,
  // which is added while they are. Products are issued whether or not their sums are used: ptxas
  // runs one after the other where one is under way on some paths only. Of two warpgroups one
  // seldom fills the time in which the other does not multiply: P is computed while dP is under
  // way, and dV and dK are issued without anything between their instructions.
  __device__ __forceinline__ void differentiate() {
    issue_scores();
    take_places_back();  // that of dK of the task before will hold dS
    wgmma_wait<0>();
    pin(scores_);
    for (bool is_last = false; !is_last;) {
      const Step& step = s_.steps[stage_.index];
      is_last = step.last_of_task;
      const Sight sight = step.sights[warpgroup_];
      const float shift = shift_of_step();
      issue_dweights();
      weigh_beside_dweights(sight, shift);
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

  __device__ __forceinline__ void add_pending() {
    pin(dweights_);
    arrive_warp(&s_.dscores_empty[pending_buffer_.index]);
    add_dq(count_ - 1);
  }
  // The last that a task does with its keys, which will be overwritten.
  __device__ __forceinline__ void finish_addition() {
    if (!has_pending_) return give_keys_back();
    wait_for_pending();
    issue_dq();
    wgmma_wait<0>();
    give_keys_back();
    add_pending();
    has_pending_ = false;
  }

  __device__ __forceinline__ void finish_task() {
    const OwnKeys keys = own_keys();
    const bool sends = !p_.head_sums;
    if (sends) send_dv(keys.task);
    finish_addition();
    store_key_sums(keys);
    if (sends) {
      send_dk(keys.task);
    } else {
      store_head_sums(keys);
    }
  }

  // When dV was read from the place of the values.
  __device__ __forceinline__ void give_keys_back() const {
    if (thread_ == 0) wait_stores_read();
    arrive_warp(&s_.keys_empty);
  }

  // In the place of the values of these keys.
  __device__ __forceinline__ void send_dv(const KeyTask& task) const {
    send_rows<0, C::kPieces>(p_.dv, task, dv_, 1, [this](int piece) {
      return s_.values + piece * C::kKeys * kRowBytes;
    });
  }
  // In the place of their dS, whose products are done.
  __device__ __forceinline__ void send_dk(const KeyTask& task) const {
    static_assert(C::kPieces == C::kBuffers);
    Stage<C::kBuffers> place = buffer_;
#pragma unroll
    for (int piece = 0; piece < C::kPieces; ++piece, place.next()) {
      wait(shared_address(&s_.dscores_empty[place.index]), place.parity ^ 1);
    }
    send_rows<0, C::kPieces>(
        p_.dk, task, dk_, p_.task.problem.scale, [this](int piece) { return s_.dscores[piece]; });
  }

  bool has_pending_ = false;  // whether the dQ of the step before is not added yet
};

}  // namespace reynard::attention::cuda::sm90::bwd
