#pragma once
// The computing side of the backward kernel: a warpgroup owns 64 keys of a block, whose dK and dV
// stay in its registers, and multiplies dQ: its half of each step's, or all of every third step's.

#include "reynard/attention/cuda/sm90/backward_config.cuh"
#include "reynard/attention/cuda/sm90/backward_results.cuh"
#include "reynard/attention/cuda/sm90/backward_sums.cuh"
#include "reynard/attention/cuda/sm90/wgmma.cuh"
#include "reynard/attention/cuda/visibility.cuh"

#include <cmath>

namespace reynard::attention::cuda::sm90::bwd {

constexpr double kLog2E = 1.4426950408889634;

template <class C>
class Consumer {
  using Scalar = typename C::Scalar;

 public:
  __device__ __forceinline__ Consumer(const Params& p, Shared<C>& s, int warpgroup)
      : p_(p),
        s_(s),
        warpgroup_(warpgroup),
        thread_(threadIdx.x % kWarpgroup),
        scale2_(static_cast<float>(p.task.problem.scale * kLog2E)) {}

  __device__ __forceinline__ void run() {
    for (uint32_t keys_parity = 0;; keys_parity ^= 1) {
      wait_for_stage();
      if (s_.steps[stage_.index].stop) break;
      wait(shared_address(&s_.keys_full), keys_parity);
      start_task();
      if (s_.steps[stage_.index].has_queries) {
        differentiate();
      } else {
        release_stage();
      }
      finish_task();
    }
    stop_delivery();
  }

 private:
  __device__ __forceinline__ void wait_for_stage() const {
    wait(shared_address(&s_.stage_full[stage_.index]), stage_.parity);
  }
  __device__ __forceinline__ void release_stage() {
    arrive_warp(&s_.stage_empty[stage_.index]);  // all lanes have read the step
    stage_.next();
  }
  __device__ __forceinline__ void arrive_warp(uint64_t* barrier) const {
    __syncwarp();
    if (thread_ % 32 == 0) arrive(shared_address(barrier));
  }

  __device__ __forceinline__ void start_task() {
    first_key_ = s_.task.n * C::kKeys + warpgroup_ * kOwnKeys;
    if constexpr (C::kRunsAhead) load_key_biases();
    key_sums_[0] = key_sums_[1] = {};
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) dk_[i] = dv_[i] = 0;
  }

  // Of the 64 keys, the first that this thread holds; the other is 8 behind.
  __device__ __forceinline__ int own_row() const {
    return thread_ / 32 * 16 + thread_ % 32 / 4;
  }
  __device__ __forceinline__ int key(int r) const {
    return first_key_ + own_row() + 8 * r;
  }

  // As a left operand.
  __device__ __forceinline__ void load_key_biases() {
    const SplitNumber* own = s_.biases[warpgroup_].keys + own_row();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      key_bias_[i] = reinterpret_cast<const uint32_t*>(own + i % 2 * 8)[thread_ % 4];
    }
  }

  // ---- steps ----

  // All of a task. The dQ of a step is multiplied in the step after, when the dS of the other
  // warpgroups is there, and posted in the one after that. While the matrix unit multiplies dP, dV
  // and dK, this computes P and the sums of dS.
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
  // dQ. Products are issued whether or not their sums are used: ptxas runs one after the other
  // where one is under way on some paths only. Of two warpgroups one seldom fills the time in which
  // the other does not multiply: P is computed while dP is under way, and dV and dK are issued
  // without anything between their instructions.
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
      post_part();
      if (sight != Sight::kAll) hide();
      weigh(shift);
      keep_order(bits_of(scores_));
      wgmma_wait<0>();
      pin(dweights_);
      pack(scores_, weights_);
      differentiate_weights();
      store_dscores();
      note_step();
      issue_gradients();
      keep_order(count_);
      pass_on_dscores();
      sum_over_queries();
      if (pending_ >= 0) wait_for_pending();
      issue_dq();
      const SplitSum sum = query_sum();
      wgmma_wait<1>();
      pin_gradients();
      release_stage();
      if (!is_last) wait_for_stage();
      issue_scores();
      wgmma_wait<1>();
      if (pending_ >= 0) send_pending(sum);
      count_step(true);
      wgmma_wait<0>();
      pin(scores_);
    }
  }

  // ptxas moves what is not needed yet behind a wait for the matrix unit, or between the
  // instructions of a product; across a branch it moves nothing. This one is never taken: the
  // number is not negative.
  static __device__ __forceinline__ void keep_order(int number) {
    asm volatile("" : "+r"(number));  // the compiler may know that it is not
    if (number < 0) asm volatile("nanosleep.u32 0;" ::: "memory");
  }
  // What depends on all weights and, as they do, has no sign.
  static __device__ __forceinline__ int bits_of(const float (&weights)[kQueriesPerTile / 2]) {
    int bits = 0;
#pragma unroll
    for (const float weight : weights) bits |= __float_as_int(weight);
    return bits;
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

  __device__ __forceinline__ void wait_for_pending() const {
    wait(shared_address(&s_.dscores_full[pending_buffer_.index]), pending_buffer_.parity);
  }
  __device__ __forceinline__ void issue_dq() {
    wgmma_fence();
    multiply_dq();
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_scores() {
    wgmma_fence();
    multiply_rows(s_.keys, s_.queries[stage_.index], scores_);
    add_split_numbers(s_.records[stage_.index].logits, scores_);
    wgmma_commit();
  }
  __device__ __forceinline__ void issue_dweights() {
    wgmma_fence();
    multiply_rows(s_.values, s_.douts[stage_.index], dweights_);
    add_split_numbers(s_.records[stage_.index].deltas, dweights_);
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

  // Left operand: 64 rows of a key block; right: 64 rows of queries; depth: dimensions.
  __device__ __forceinline__ void multiply_rows(const char* left,
                                                const char* right,
                                                float (&sums)[kQueriesPerTile / 2]) {
    const uint64_t a =
        swizzled_descriptor(shared_address(left) + warpgroup_ * kOwnKeys * kRowBytes, 16, 1024);
    const uint64_t b = swizzled_descriptor(shared_address(right), 16, 1024);
#pragma unroll
    for (int step = 0; step < C::kDim / 16; ++step) {
      const int half = step / 4, within = step % 4 * 32;
      wgmma<kQueriesPerTile, Scalar>(sums,
                                     advanced(a, half * C::kKeys * kRowBytes + within),
                                     advanced(b, half * kPieceBytes + within),
                                     step > 0);
    }
  }
  // Both operands are eight numbers deep, which the matrix unit reads twice.
  __device__ __forceinline__ void add_split_numbers(const SplitNumber* right,
                                                    float (&sums)[kQueriesPerTile / 2]) {
    const uint64_t b = plain_descriptor(shared_address(right), 0, 128);
    if constexpr (C::kRunsAhead) {
      wgmma_registers<kQueriesPerTile, __nv_bfloat16, Contiguous::kDepth>(sums, key_bias_, b, 1);
    } else {
      const SplitNumber* keys = s_.biases[warpgroup_].keys;
      wgmma<kQueriesPerTile, __nv_bfloat16>(
          sums, plain_descriptor(shared_address(keys), 0, 128), b, 1);
    }
  }

  // Of a query's logit beyond what the matrix unit adds to it, in powers of two.
  __device__ __forceinline__ float shift_of_step() const {
    const SplitSum first = s_.records[stage_.index].first, last = s_.biases[warpgroup_].last;
    return (first.high - last.high) + (first.low - last.low);
  }

  __device__ __forceinline__ void hide() {
    const Problem& problem = p_.task.problem;
    const Step& step = s_.steps[stage_.index];
    const int b = s_.task.b, start = step.start, first_query = step.m * kQueriesPerTile;
#pragma unroll
    for (int j = 0; j < kQueriesPerTile / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int query = first_query + 8 * j + thread_ % 4 * 2 + e;
        KeyRange visible;
        if (query < problem.Tq) visible = keys_from(problem, b, start, query);
        if (!visible.holds(key(0))) scores_[4 * j + e] = -INFINITY;
        if (!visible.holds(key(1))) scores_[4 * j + 2 + e] = -INFINITY;
      }
    }
  }

  // scores_ becomes P^T.
  __device__ __forceinline__ void weigh(float shift) {
#pragma unroll
    for (int j = 0; j < kQueriesPerTile / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores_[4 * j + e] = exp2_fast(fmaf(scores_[4 * j + e], scale2_, shift));
      }
    }
  }

  static __device__ __forceinline__ void pack(const float (&from)[kQueriesPerTile / 2],
                                              uint32_t (&to)[kQueriesPerTile / 4]) {
#pragma unroll
    for (int i = 0; i < kQueriesPerTile / 4; ++i) {
      to[i] = packed(from[2 * i], from[2 * i + 1], Scalar());
    }
  }

  // dweights_ becomes dS^T; a weight of 0 gives 0 whatever dP is.
  __device__ __forceinline__ void differentiate_weights() {
#pragma unroll
    for (int i = 0; i < kQueriesPerTile / 2; ++i) dweights_[i] *= scores_[i];
    pack(dweights_, dscores_);
  }

  __device__ __forceinline__ void sum_over_queries() {
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < kQueriesPerTile / 2; ++i) sums[i / 2 % 2] += dweights_[i];
    add_to(key_sums_[0], sums[0]);
    add_to(key_sums_[1], sums[1]);
  }

  __device__ __forceinline__ void store_dscores() const {
    wait(shared_address(&s_.dscores_empty[buffer_.index]), buffer_.parity ^ 1);
    const int row = warpgroup_ * kOwnKeys + own_row();
    const uint32_t base =
        shared_address(s_.dscores[buffer_.index]) + row * kRowBytes + thread_ % 4 * 4;
#pragma unroll
    for (int j = 0; j < kQueriesPerTile / 8; ++j) {
      const uint32_t address = base + ((j ^ (row & 7)) << 4);
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(dscores_[2 * j]) : "memory");
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(address + 8 * kRowBytes),
                   "r"(dscores_[2 * j + 1])
                   : "memory");
    }
    fence_for_async();
  }

  __device__ __forceinline__ void pass_on_dscores() {
    const int warp = thread_ / 32, lane = thread_ % 32;
    sum_over_keys(dweights_, lane, s_.query_sums[buffer_.index][warpgroup_ * 4 + warp]);
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
    const char* keys = s_.keys + warpgroup_ % C::kHalves * C::kKeys * kRowBytes;
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

  // dS of one query, summed over the keys of half of the warps while the matrix unit multiplies dQ.
  __device__ __forceinline__ SplitSum query_sum() const {
    constexpr int kWarps = C::kConsumers * 4 / kSumParts;
    const auto* sums = s_.query_sums[pending_buffer_.index] + thread_ / kQueriesPerTile * kWarps;
    SplitSum sum;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) add_to(sum, sums[warp][thread_ % kQueriesPerTile]);
    return sum;
  }

  // Where the dQ of a step waits for its delivery, and how often that place was used before.
  __device__ __forceinline__ int slot_of(int count) const {
    return C::kTakesTurns ? count % kSlots : warpgroup_;
  }
  static __device__ __forceinline__ int uses_before(int count) {
    return C::kTakesTurns ? count / kSlots : count;
  }

  // A part is [register quad][thread][4]: whoever reads it back knows what it holds. It is posted
  // in the next step, when the stores are over.
  __device__ __forceinline__ void send_pending(const SplitSum& sum) {
    pin(dweights_);
    const int slot = slot_of(pending_);
    wait_for_slot(slot, pending_);
    arrive_warp(&s_.dscores_empty[pending_buffer_.index]);
    auto* part = reinterpret_cast<float4*>(s_.dq[slot]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      part[j * kWarpgroup + thread_] = {
          dweights_[4 * j], dweights_[4 * j + 1], dweights_[4 * j + 2], dweights_[4 * j + 3]};
    }
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
      const int count = C::kTakesTurns ? count_ + i : count_;
      const int slot = C::kTakesTurns ? slot_of(count) : i;
      wait_for_slot(slot, count);
      if (thread_ == 0) s_.deliveries[slot].stop = true;
      arrive_warp(&s_.dq_full[slot]);
    }
  }

  __device__ __forceinline__ void finish_task() {
    const OwnKeys keys = {s_.task, key(0), thread_};
    finish_pending();
    const BackwardTask& to = p_.task;
    store_key_sums(to, keys, key_sums_);
    if (!p_.head_sums) {
      store_rows<Scalar>(to.problem, keys, to.dk, dk_, to.problem.scale);
      store_rows<Scalar>(to.problem, keys, to.dv, dv_, 1);
      return;
    }
    const KeyTask& task = keys.task;
    const int64_t block = (int64_t{task.b} * to.problem.H + task.h) * p_.num_key_blocks + task.n;
    constexpr int kPartsOfSums = C::kHalves * kPartFloats;
    float* parts = p_.head_sums + (block * C::kConsumers + warpgroup_) * 2 * kPartsOfSums;
    store_parts(parts, thread_, dk_);
    store_parts(parts + kPartsOfSums, thread_, dv_);
  }

  static constexpr int kAllBarrier = 1;  // among warpgroups

  const Params& p_;
  Shared<C>& s_;
  const int warpgroup_, thread_;
  const float scale2_;
  Stage<C::kStages> stage_;
  Stage<C::kBuffers> buffer_;
  int count_ = 0;     // of steps
  int pending_ = -1;  // the step whose dQ is this warpgroup's next; -1: there is none
  Stage<C::kBuffers> pending_buffer_;
  int unposted_ = -1;  // the slot whose part is to be posted; -1: there is none
  int first_key_ = 0;
  uint32_t key_bias_[4];
  SplitSum key_sums_[2];
  float scores_[kQueriesPerTile / 2], dweights_[kQueriesPerTile / 2];
  uint32_t weights_[kQueriesPerTile / 4], dscores_[kQueriesPerTile / 4];
  float dk_[C::kDim / 2], dv_[C::kDim / 2];
};

}  // namespace reynard::attention::cuda::sm90::bwd
