#pragma once
// Up to 128 dimensions: a warpgroup owns 64 keys of a block, whose dK and dV stay in its registers,
// and multiplies dQ: its half of each step's, or all of every third step's.

#include "reynard/attention/cuda/sm90/backward_consumer.cuh"

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
class OwnKeysConsumer : Consumer<C> {
  using Base = Consumer<C>;
  using typename Base::Scalar;

 public:
  __device__ __forceinline__ OwnKeysConsumer(const Params& p, Shared<C>& s, int warpgroup)
      : Base(p, s, warpgroup) {}

  __device__ __forceinline__ void run() {
    take_tasks([this] { differentiate(); }, [this] { finish_task(); });
    if constexpr (C::kDelivers) stop_delivery();
  }

 private:
  using Base::add, Base::pass_on_query_sums, Base::pass_on_turn, Base::wait_for_turn;
  using Base::add_split_numbers, Base::arrive_warp, Base::bits_of, Base::differentiate_weights;
  using Base::buffer_, Base::count_, Base::dk_, Base::dscores_, Base::dv_, Base::dweights_;
  using Base::first_key_, Base::kAllBarrier, Base::kScores, Base::key_sums_, Base::p_, Base::s_;
  using Base::hide, Base::issue_dweights, Base::issue_scores, Base::keep_order, Base::key;
  using Base::own_row, Base::pack, Base::release_stage, Base::shift_of_step, Base::start_task;
  using Base::scores_, Base::stage_, Base::thread_, Base::warpgroup_, Base::weights_;
  using Base::store_gradients, Base::store_pairs, Base::store_query_sums;
  using Base::sum_over_queries, Base::take_tasks, Base::wait_for_stage, Base::weigh;

  // All of a task. The dQ of a step is multiplied in the step after, when the dS of the other
  // warpgroups is there, and then added, or posted in the one after that. While the matrix unit
  // multiplies dP, dV and dK, this computes P and the sums of dS.
  __device__ __forceinline__ void differentiate() {
    if constexpr (C::kRunsAhead) {
      differentiate_ahead();
    } else {
      differentiate_by_step();
    }
  }

  __device__ __forceinline__ void differentiate_by_step() {
    for (;;) {
      const Step& step = s_.steps[stage_.index];
      const bool is_last = step.last_of_task;
      const Sight sight = step.sights[warpgroup_];
      if (sight != Sight::kNone) {
        differentiate_step(sight);
      } else {
        pass_step();
      }
      if (is_last) break;
      wait_for_stage();
    }
  }

  __device__ __forceinline__ void differentiate_step(Sight sight) {
    const float shift = shift_of_step();
    issue_scores();
    issue_dweights();
    post_part();
    wgmma_wait<1>();
    pin(scores_);
    if (sight != Sight::kAll) hide();
    weigh(shift);
    wgmma_wait<0>();
    pin(dweights_);
    differentiate_weights();
    sum_over_queries();
    pack(scores_, weights_);  // not before: registers are scarce while dP is under way
    store_dscores();
    issue_gradients();
    pass_on_dscores();
    finish_step();
  }

  // The step of a warpgroup of whose keys no query sees one.
  __device__ __forceinline__ void pass_step() {
    post_part();
#pragma unroll
    for (int i = 0; i < kQueriesPerTile / 2; ++i) dweights_[i] = dscores_[i / 2] = 0;
    store_dscores();
    pass_on_dscores();
    finish_step();
  }

  // dQ of the step before, and the end of this one's products.
  __device__ __forceinline__ void finish_step() {
    const bool is_own = buffer_.index == warpgroup_;
    if (is_own) note_step();
    if (pending_ >= 0) {
      wait_for_pending();
      issue_dq();
      const SplitSum sum = query_sum();
      wgmma_wait<1>();
      pin_gradients();
      release_stage();
      wgmma_wait<0>();
      send_pending(sum);
    } else {
      wgmma_wait<0>();
      pin_gradients();
      release_stage();
    }
    count_step(is_own);
  }

  // The same where registers are left for the scores of the next step, which are multiplied behind
  // dQ; dQ is added while they are. Products are issued whether or not their sums are used: ptxas
  // runs one after the other where one is under way on some paths only. Of two warpgroups one
  // seldom fills the time in which the other does not multiply: P is computed while dP is under
  // way, and dV and dK are issued without anything between their instructions.
  __device__ __forceinline__ void differentiate_ahead() {
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

  // What the dQ of this step will be delivered as.
  __device__ __forceinline__ void note_step() {
    if (thread_ != 0) return;
    const Step& step = s_.steps[stage_.index];
    s_.pending[warpgroup_][count_ % 2] = {s_.task, step.m, step.turn, false};
  }
  __device__ __forceinline__ void count_step(bool is_own) {
    unposted_ = pending_ < 0 ? -1 : slot_of(pending_);
    pending_ = is_own ? count_ : -1;
    pending_buffer_ = buffer_;
    ++count_;
    buffer_.next();
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

  // The same where dQ is delivered.
  __device__ __forceinline__ void finish_pending() {
    post_part();
    unposted_ = -1;
    if (pending_ < 0) return arrive_warp(&s_.keys_empty);
    wait_for_pending();
    issue_dq();
    const SplitSum sum = query_sum();
    wgmma_wait<0>();
    arrive_warp(&s_.keys_empty);
    send_pending(sum);
    unposted_ = slot_of(pending_);
    post_part();
    unposted_ = pending_ = -1;
  }

  __device__ __forceinline__ void wait_for_pending() const {
    wait(shared_address(&s_.dscores_full[pending_buffer_.index]), pending_buffer_.parity);
  }
  __device__ __forceinline__ void issue_dq() {
    wgmma_fence();
    multiply_dq();
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_gradients() {
    wgmma_fence();
    add_product(weights_, s_.douts[stage_.index], dv_);    // dV += P^T dO
    add_product(dscores_, s_.queries[stage_.index], dk_);  // dK += dS^T Q
    wgmma_commit();
  }

  __device__ __forceinline__ void pin_gradients() {
    pin(dk_);
    pin(dv_);
  }

  __device__ __forceinline__ void store_dscores() const {
    wait(shared_address(&s_.dscores_empty[buffer_.index]), buffer_.parity ^ 1);
    store_pairs(dscores_, s_.dscores[buffer_.index]);
  }

  __device__ __forceinline__ void pass_on_dscores() {
    fence_for_async();
    if constexpr (C::kDelivers) {
      store_query_sums(s_.query_sums[buffer_.index]);
    } else {
      pass_on_query_sums();
    }
    arrive_warp(&s_.dscores_full[buffer_.index]);
  }

  // Left operand: 64 keys of this warpgroup; right: dimensions; depth: 64 queries.
  __device__ __forceinline__ void add_product(const uint32_t* left,
                                              const char* right,
                                              float (&sums)[C::kDim / 2]) {
    const uint64_t b = swizzled_descriptor(shared_address(right), kPieceBytes, 1024);
#pragma unroll
    for (int step = 0; step < kQueriesPerTile / 16; ++step) {
      wgmma_registers<C::kDim, Scalar, Contiguous::kRows>(
          sums, left + 4 * step, advanced(b, step * 16 * kRowBytes), 1);
    }
  }

  // dQ = dS K over all keys of the block, or this warpgroup's half of its dimensions, into
  // dweights_.
  __device__ __forceinline__ void multiply_dq() {
    const char* keys = s_.keys + warpgroup_ % C::kPieces * C::kKeys * kRowBytes;
    const uint64_t ds =
        swizzled_descriptor(shared_address(s_.dscores[pending_buffer_.index]), 16, 1024);
    const uint64_t k = swizzled_descriptor(shared_address(keys), 16, 1024);
#pragma unroll
    for (int step = 0; step < C::kKeys / 16; ++step) {
      wgmma<64, Scalar, Contiguous::kRows, Contiguous::kRows>(dweights_,
                                                              advanced(ds, step * 16 * kRowBytes),
                                                              advanced(k, step * 16 * kRowBytes),
                                                              step > 0);
    }
  }

  // Where the dQ of a step waits for its delivery, and how often that place was used before.
  __device__ __forceinline__ int slot_of(int count) const {
    return count % kSlots;
  }
  static __device__ __forceinline__ int uses_before(int count) {
    return count / kSlots;
  }

  // dS of one query, summed over the keys of half of the warps while the matrix unit multiplies dQ.
  __device__ __forceinline__ SplitSum query_sum() const {
    constexpr int kWarps = C::kKeyGroups * 4 / kSumParts;
    const auto* sums = s_.query_sums[pending_buffer_.index] + thread_ / kQueriesPerTile * kWarps;
    SplitSum sum;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) add_to(sum, sums[warp][thread_ % kQueriesPerTile]);
    return sum;
  }

  // A part is posted in the next step, when the stores are over.
  __device__ __forceinline__ void send_pending(const SplitSum& sum) {
    pin(dweights_);
    const int slot = slot_of(pending_);
    wait_for_slot(slot, pending_);
    arrive_warp(&s_.dscores_empty[pending_buffer_.index]);
    store_parts(s_.dq[slot], thread_, dweights_);
    s_.dq_sums[slot][thread_ / kQueriesPerTile][thread_ % kQueriesPerTile] = sum;
    if (thread_ == 0) s_.deliveries[slot] = s_.pending[warpgroup_][pending_ % 2];
  }

  __device__ __forceinline__ void post_part() {
    if (unposted_ < 0) return;
    fence_for_async();
    arrive_warp(&s_.dq_full[unposted_]);
  }

  // Until the part before was read. Who sent that one has passed this wait: it has since stored dS
  // that this part is a product of.
  __device__ __forceinline__ void wait_for_slot(int slot, int count) const {
    wait(shared_address(&s_.dq_empty[slot]), (uses_before(count) % 2) ^ 1);
  }

  // When all parts of all warpgroups were posted.
  __device__ __forceinline__ void stop_delivery() {
    sync_threads(kAllBarrier, C::kConsumers * kWarpgroup);
    if (warpgroup_ != 0) return;
    for (int i = 0; i < kSlots; ++i) {
      const int count = count_ + i, slot = slot_of(count);
      wait_for_slot(slot, count);
      if (thread_ == 0) s_.deliveries[slot].stop = true;
      arrive_warp(&s_.dq_full[slot]);
    }
  }

  __device__ __forceinline__ void finish_task() {
    const OwnKeys keys = {s_.task, key(0), thread_};
    if constexpr (C::kDelivers) {
      finish_pending();
    } else {
      finish_addition();
    }
    if (p_.task.dkey_sums) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const double sum = sum_of_key(key_sums_[r]);
        if (thread_ % 4 == 0) store_key_sum(p_.task, keys.task, keys[r], sum);
      }
    }
    store_gradients(keys);
  }

  Stage<C::kBuffers> pending_buffer_;
  // Where dQ is added: whether that of the step before is not yet.
  bool has_pending_ = false;
  // Where it is delivered.
  int pending_ = -1;   // the step whose dQ is this warpgroup's next; -1: there is none
  int unposted_ = -1;  // the slot whose part is to be posted; -1: there is none
};

}  // namespace reynard::attention::cuda::sm90::bwd
