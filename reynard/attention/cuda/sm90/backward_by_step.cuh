#pragma once
// Up to 64 dimensions: three warpgroups hide each other's waiting, and their registers hold one
// tile at a time. The dQ of every third step is multiplied by one of them and delivered by other
// warps (backward_delivery.cuh).

#include "reynard/attention/cuda/sm90/backward_own_keys.cuh"

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
class StepConsumer : OwnKeysConsumer<C> {
  using Base = OwnKeysConsumer<C>;

 public:
  __device__ __forceinline__ StepConsumer(const Params& p, Shared<C>& s, int warpgroup)
      : Base(p, s, warpgroup) {}

  __device__ __forceinline__ void run() {
    take_tasks([this] { differentiate(); }, [this] { finish_task(); });
    stop_delivery();
  }

 private:
  using Base::arrive_warp, Base::buffer_, Base::count_, Base::differentiate_weights, Base::dk_;
  using Base::dscores_, Base::dv_, Base::dweights_, Base::hide, Base::issue_dq;
  using Base::issue_dweights, Base::issue_gradients, Base::issue_scores, Base::kAllBarrier;
  using Base::own_keys, Base::p_, Base::pack, Base::pending_buffer_, Base::pin_gradients;
  using Base::release_stage, Base::s_, Base::scores_, Base::shift_of_step, Base::stage_;
  using Base::store_dscores, Base::store_head_sums, Base::store_key_sums, Base::store_query_sums;
  using Base::sum_over_queries, Base::take_tasks, Base::thread_, Base::wait_for_pending;
  using Base::wait_for_stage, Base::warpgroup_, Base::weigh, Base::weights_;
  using typename Base::Scalar;

  // All of a task. The dQ of a step is multiplied in the step after, and posted in the one after
  // that. While the matrix unit multiplies dP, dV and dK, this computes P and the sums of dS.
  __device__ __forceinline__ void differentiate() {
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

  // The last that a task does with its keys, which will be overwritten.
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

  __device__ __forceinline__ void pass_on_dscores() {
    fence_for_async();
    store_query_sums(s_.query_sums[buffer_.index]);
    arrive_warp(&s_.dscores_full[buffer_.index]);
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
    const OwnKeys keys = own_keys();
    finish_pending();
    store_key_sums(keys);
    if (p_.head_sums) return store_head_sums(keys);
    const BackwardTask& to = p_.task;
    store_rows<Scalar>(to.problem, keys, to.dk, dk_, to.problem.scale);
    store_rows<Scalar>(to.problem, keys, to.dv, dv_, 1);
  }

  int pending_ = -1;   // the step whose dQ is this warpgroup's next; -1: there is none
  int unposted_ = -1;  // the slot whose part is to be posted; -1: there is none
};

}  // namespace reynard::attention::cuda::sm90::bwd
