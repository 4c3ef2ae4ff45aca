#pragma once
// What every computing warpgroup of the backward kernel does: waits for steps, computes P^T and
// dS^T of 64 keys and its queries, and leaves its dK and dV. How a task is walked over, and dQ,
// lie in what includes this.

#include "reynard/attention/cuda/logarithms.cuh"
#include "reynard/attention/cuda/sm90/backward_config.cuh"
#include "reynard/attention/cuda/sm90/backward_results.cuh"
#include "reynard/attention/cuda/sm90/backward_sums.cuh"
#include "reynard/attention/cuda/sm90/wgmma.cuh"
#include "reynard/attention/cuda/visibility.cuh"

#include <cmath>

namespace reynard::attention::cuda::sm90::bwd {

template <class C>
class Consumer {
 protected:
  using Scalar = typename C::Scalar;
  static constexpr int kScores = kQueriesPerTile / 2;  // of a thread

  __device__ __forceinline__ Consumer(const Params& p, Shared<C>& s, int warpgroup)
      : p_(p),
        s_(s),
        warpgroup_(warpgroup),
        thread_(threadIdx.x % kWarpgroup),
        scale2_(static_cast<float>(p.task.problem.scale * kLog2E)) {}

  // Which keys.

  // Of the 64 keys, the first that this thread holds; the other is 8 behind.
  __device__ __forceinline__ int own_row() const { return thread_ / 32 * 16 + thread_ % 32 / 4; }
  __device__ __forceinline__ int key(int r) const { return first_key_ + own_row() + 8 * r; }

  // Tasks and steps.

  // Until there are no more: differentiate() walks over the steps of one, finish() leaves what it
  // has summed.
  template <class Differentiate, class Finish>
  __device__ __forceinline__ void take_tasks(const Differentiate& differentiate,
                                             const Finish& finish) {
    for (uint32_t keys_parity = 0;; keys_parity ^= 1) {
      wait_for_stage();
      if (s_.steps[stage_.index].stop) break;
      wait(shared_address(&s_.keys_full), keys_parity);
      start_task();
      if (s_.steps[stage_.index].has_queries) {
        differentiate();
      } else {
        release_stage();
        if constexpr (C::kHasHalves) give_values_back();
      }
      finish();
    }
  }

  __device__ __forceinline__ void wait_for_stage() const {
    wait(shared_address(&s_.stage_full[stage_.index]), stage_.parity);
  }
  __device__ __forceinline__ void release_stage() {
    arrive_warp(&s_.stage_empty[stage_.index]);  // all lanes have read the step
    stage_.next();
  }
  // Behind the last dP of a half: those of the next task are loaded a step before its keys.
  __device__ __forceinline__ void give_values_back() const { arrive_warp(&s_.values_empty); }
  __device__ __forceinline__ void arrive_warp(uint64_t* barrier) const {
    __syncwarp();
    arrive_for_group(shared_address(barrier), thread_ % 32);
  }

  __device__ __forceinline__ void start_task() {
    first_key_ = s_.task.n * C::kKeys + warpgroup_ * kOwnKeys;
    if constexpr (C::kBiasesInRegisters) load_key_biases();
    key_sums_[0] = key_sums_[1] = {};
#pragma unroll
    for (int i = 0; i < C::kGradientDims / 2; ++i) dk_[i] = dv_[i] = 0;
  }

  // As a left operand.
  __device__ __forceinline__ void load_key_biases() {
    const SplitNumber* own = s_.biases[warpgroup_].keys + own_row();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      key_bias_[i] = reinterpret_cast<const uint32_t*>(own + i % 2 * 8)[thread_ % 4];
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
  static __device__ __forceinline__ int bits_of(const float (&weights)[kScores]) {
    int bits = 0;
#pragma unroll
    for (const float weight : weights) bits |= __float_as_int(weight);
    return bits;
  }

  // Scores, weights and their gradients.

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

  // Left operand: 64 rows of a key block; right: rows of queries; depth: dimensions, or those of
  // some pieces.
  template <int kFirst = 0, int kEnd = C::kPieces>
  __device__ __forceinline__ void multiply_rows(const char* left,
                                                const char* right,
                                                float (&sums)[kScores]) {
    const uint64_t a =
        swizzled_descriptor(shared_address(left) + warpgroup_ * kOwnKeys * kRowBytes, 16, 1024);
    const uint64_t b = swizzled_descriptor(shared_address(right), 16, 1024);
#pragma unroll
    for (int step = kFirst * 4; step < kEnd * 4; ++step) {
      const int piece = step / 4, within = step % 4 * 32;
      wgmma<kQueriesPerTile, Scalar>(sums,
                                     advanced(a, piece * C::kKeys * kRowBytes + within),
                                     advanced(b, piece * kPieceBytes + within),
                                     step > 0);
    }
  }
  // Both operands are eight numbers deep, which the matrix unit reads twice.
  __device__ __forceinline__ void add_split_numbers(const SplitNumber* right,
                                                    float (&sums)[kScores]) {
    const uint64_t b = plain_descriptor(shared_address(right), 0, 128);
    if constexpr (C::kBiasesInRegisters) {
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

  // Scores of keys that a query must not see. By key takes fewer instructions, since the queries
  // that see one lie side by side; but at 64 dimensions the loop that ptxas then makes is 2 %
  // slower.
  __device__ __forceinline__ void hide() {
    if constexpr (C::kDelivers) {
      hide_by_query();
    } else {
      hide_by_key();
    }
  }

  // first_key grows: most tiles lie behind the first key of their last query.
  __device__ __forceinline__ bool is_cut(const int* first_keys, int first) const {
    const Problem& problem = p_.task.problem;
    const int last = min(first + kQueriesPerTile, problem.Tq) - 1;
    return problem.first_key && first_keys[last] > first_key_;
  }
  __device__ __forceinline__ const int* first_keys() const {
    return p_.task.problem.first_key + int64_t{s_.task.b} * p_.task.problem.Tq;
  }

  __device__ __forceinline__ void hide_by_query() {
    const Problem& problem = p_.task.problem;
    const Step& step = s_.steps[stage_.index];
    const int start = step.start, first = step.m * kQueriesPerTile;
    const int* begins = first_keys();
    const bool cut = is_cut(begins, first);
#pragma unroll
    for (int j = 0; j < kQueriesPerTile / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int query = first + 8 * j + thread_ % 4 * 2 + e;
        KeyRange visible;
        if (query < problem.Tq) {
          visible = {start, problem.causal ? query + problem.Tk - problem.Tq + 1 : problem.Tk};
          if (cut) visible.begin = max(start, begins[query]);
        }
        if (!visible.holds(key(0))) scores_[4 * j + e] = -INFINITY;
        if (!visible.holds(key(1))) scores_[4 * j + 2 + e] = -INFINITY;
      }
    }
  }

  __device__ __forceinline__ void hide_by_key() {
    const Problem& problem = p_.task.problem;
    const Step& step = s_.steps[stage_.index];
    const int first = step.m * kQueriesPerTile + thread_ % 4 * 2;
    const int count = problem.Tq - first;
    int blind[2];  // queries that come before those that see the key
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool kept = key(r) >= step.start && key(r) < problem.Tk;
      blind[r] = !kept ? count : problem.causal ? key(r) - (problem.Tk - problem.Tq) - first : 0;
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int query = i / 4 * 8 + i % 2;
      if (query < blind[i / 2 % 2] || query >= count) scores_[i] = -INFINITY;
    }
    const int* begins = first_keys();
    if (!is_cut(begins, first)) return;
#pragma unroll
    for (int i = 0; i < kQueriesPerTile / 4; ++i) {
      // Of queries beyond the last one all is hidden.
      const int begin = begins[min(first + i / 2 * 8 + i % 2, problem.Tq - 1)];
      float* const scores = scores_ + i / 2 * 4 + i % 2;
      if (key(0) < begin) scores[0] = -INFINITY;
      if (key(1) < begin) scores[2] = -INFINITY;
    }
  }

  // scores_ becomes P^T.
  __device__ __forceinline__ void weigh(float shift) {
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores_[i] = exp2_approx(fmaf(scores_[i], scale2_, shift));
  }

  static __device__ __forceinline__ void pack(const float (&from)[kScores],
                                              uint32_t (&to)[kScores / 2]) {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) to[i] = packed(from[2 * i], from[2 * i + 1], Scalar());
  }

  // dweights_ becomes dS^T; a weight of 0 gives 0 whatever finite dP is.
  __device__ __forceinline__ void differentiate_weights() {
#pragma unroll
    for (int i = 0; i < kScores; ++i) dweights_[i] *= scores_[i];
    pack(dweights_, dscores_);
  }

  __device__ __forceinline__ void sum_over_queries() {
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < kScores; ++i) sums[i / 2 % 2] += dweights_[i];
    add_to(key_sums_[0], sums[0]);
    add_to(key_sums_[1], sums[1]);
  }

  // Into [key][query] for the matrix unit, whose rows are swizzled; it needs fence_for_async().
  __device__ __forceinline__ void store_pairs(const uint32_t (&pairs)[kScores / 2],
                                              char* to) const {
    const int row = warpgroup_ * kOwnKeys + own_row();
    const uint32_t base = shared_address(to) + row * kRowBytes + thread_ % 4 * 4;
#pragma unroll
    for (int j = 0; j < kQueriesPerTile / 8; ++j) {
      const uint32_t address = base + ((j ^ (row & 7)) << 4);
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(pairs[2 * j]) : "memory");
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(address + 8 * kRowBytes), "r"(pairs[2 * j + 1])
                   : "memory");
    }
  }

  // Where dQ is added, for those who keep the turns.
  __device__ __forceinline__ void pass_on_query_sums() const {
    store_query_sums(s_.query_sums[count_ % kPlaces]);
    arrive_warp(&s_.sums_full[count_ % kPlaces]);
  }
  // sums: of each warp.
  __device__ __forceinline__ void store_query_sums(float (*sums)[kQueriesPerTile]) const {
    const int warp = thread_ / 32, lane = thread_ % 32;
    sum_over_keys(dweights_, lane, sums[warpgroup_ * 4 + warp]);
  }

  // dQ, where it is added straight from registers.
  //
  // At 128 dimensions a stage is given back behind the additions of the step: the loads that follow
  // would hold them up.

  // count: how many steps came before the one that is added.
  __device__ __forceinline__ Addition wait_for_turn(int count) const {
    wait(shared_address(&s_.turn_come[count % kPlaces]), count / kPlaces % 2);
    return s_.additions[count % kPlaces];
  }
  // 64 dimensions, as store_parts lays them out; piece: of the task.
  __device__ __forceinline__ void add(const Addition& to, int piece, const float (&sums)[32]) {
    float* dq = p_.dq_sums + (int64_t{to.tile} * C::kTaskPieces + piece) * kPartFloats;
    if (to.turn == 0) return store_parts(dq, thread_, sums);
    add_parts(dq, thread_, sums);
  }
  __device__ __forceinline__ void pass_on_turn(int count) {
    arrive_warp(&s_.dq_added[count % kPlaces]);
  }

  // Results.

  // dK and dV of a head that shares its keys with others.
  __device__ __forceinline__ void store_head_sums(const OwnKeys& keys) const {
    const KeyTask& task = keys.task;
    const int64_t head = int64_t{task.b} * p_.task.problem.H + task.h;
    const int64_t block = head * p_.num_key_blocks + task.n;
    constexpr int kPartsOfSums = C::kPieces * kPartFloats;
    float* parts = p_.head_sums + (block * C::kKeyGroups + warpgroup_) * 2 * kPartsOfSums +
                   task.half * C::kTaskPieces * kPartFloats;
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
  int count_ = 0;  // of steps
  int first_key_ = 0;
  uint32_t key_bias_[4];
  SplitSum key_sums_[2];
  float scores_[kScores], dweights_[kScores];
  uint32_t weights_[kScores / 2], dscores_[kScores / 2];
  float dk_[C::kGradientDims / 2], dv_[C::kGradientDims / 2];
};

}  // namespace reynard::attention::cuda::sm90::bwd
