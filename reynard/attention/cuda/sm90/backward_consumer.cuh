#pragma once
// The computing side of the backward kernel: a warpgroup owns 64 keys of a block, whose dK and dV
// stay in its registers, and multiplies its part of the dQ of each step.

#include "reynard/attention/cuda/sm90/backward_config.cuh"
#include "reynard/attention/cuda/sm90/wgmma.cuh"
#include "reynard/attention/cuda/visibility.cuh"

#include <cmath>

namespace reynard::attention::cuda::sm90::bwd {

constexpr double kLog2E = 1.4426950408889634;

// The sum of two f32 gains one more: 48 bits, without f64 arithmetic, which waits for the matrix
// unit.
__device__ __forceinline__ void add_to(SplitSum& sum, float value) {
  const float high = sum.high + value, part = high - sum.high;
  sum.low += (sum.high - (high - part)) + (value - part);
  sum.high = high;
}

__device__ __forceinline__ void add_to(double& sum, float value) {
  sum += value;
}
__device__ __forceinline__ double whole(const SplitSum& sum) {
  return static_cast<double>(sum.high) + sum.low;
}
__device__ __forceinline__ double whole(double sum) {
  return sum;
}

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
    uint32_t keys_parity = 0;
    for (;;) {
      wait(shared_address(&s_.stage_full[stage_.index]), stage_.parity);
      const Step& step = s_.steps[stage_.index];
      if (step.stop) break;
      b_ = step.b, h_ = step.h, m_ = step.m, n_ = step.n, turn_ = step.turn;
      const bool has_queries = step.has_queries;
      const int first_key = n_ * kKeysPerBlock + warpgroup_ * kOwnKeys;
      is_edge_ = first_key < step.full_begin || first_key + kOwnKeys > step.full_end;
      const bool last_of_task = step.last_of_task, first_of_task = step.first_of_task;
      if (first_of_task) {
        start_head();
        wait(shared_address(&s_.keys_full), keys_parity);
        keys_parity ^= 1;
#pragma unroll
        for (int i = 0; i < C::kDim / 2; ++i) dk_[i] = dv_[i] = 0;
      }
      if (has_queries) {
        differentiate_step();
      } else {
        release_stage();
      }
      if (last_of_task) finish_task();
    }
    send({.stop = true});
  }

 private:
  __device__ __forceinline__ int key(int r) const {
    return n_ * kKeysPerBlock + warpgroup_ * kOwnKeys + thread_ / 32 * 16 + thread_ % 32 / 4 +
           8 * r;
  }

  // The biases of this thread's keys as a left operand (depth 2 (t % 4) and the next).
  __device__ __forceinline__ void start_head() {
    constexpr uint32_t kOne = 0x3F80, kTwoOnes = 0x3F803F80;
    const int word = thread_ % 4;
    const uint32_t unbiased[] = {0, kOne << 16, kTwoOnes, 0};
    last_ = {};
    if (p_.biases) {
      const int64_t head = int64_t{b_} * p_.task.problem.H + h_;
      const BiasRecord& bias = p_.biases[head * p_.num_key_blocks + n_];
      last_ = bias.last();
      for (int r = 0; r < 2; ++r) {
        const int in_block = key(r) - n_ * kKeysPerBlock;
        key_bias_[r] = reinterpret_cast<const uint32_t*>(&bias.keys[in_block])[word];
      }
    } else {
      key_bias_[0] = key_bias_[1] = word == 0   ? unbiased[0]
                                    : word == 1 ? unbiased[1]
                                    : word == 2 ? unbiased[2]
                                                : unbiased[3];
    }
    key_bias_[2] = key_bias_[3] = 0;
    key_sums_[0] = key_sums_[1] = {};
  }

  __device__ __forceinline__ void release_stage() {
    __syncwarp();  // all lanes have read the step
    if (thread_ % 32 == 0) arrive(shared_address(&s_.stage_empty[stage_.index]));
    stage_.next();
  }

  // ---- one step ----

  // The dQ of a step is multiplied in the step after, when the other warpgroup's dS is there. While
  // the matrix unit multiplies dP, dV, dK, this computes P, dS, the sums of dS.
  __device__ __forceinline__ void differentiate_step() {
    const int buffer = count_ % 2;
    wgmma_fence();
    multiply_scores(0);
    wgmma_commit();
#pragma unroll
    for (int tile = 0; tile < C::kTiles; ++tile) {
      wgmma_fence();
      multiply_dweights(tile);
      wgmma_commit();
      const SplitSum first = s_.records[stage_.index][tile].first;
      const float shift = (first.high - last_.high) + (first.low - last_.low);
      wgmma_wait<1>();
      pin(scores_);
      if (tile > 0) pin_gradients();
      if (is_edge_) hide(tile);
      weigh(shift);
      pin(scores_);
      if constexpr (C::kTiles > 1) {
        wgmma_fence();
        multiply_dv(tile);
        wgmma_commit();
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      pin(dweights_);
      differentiate_weights();
      if (tile == 0) wait(shared_address(&s_.dscores_empty[buffer]), (count_ / 2 % 2) ^ 1);
      store_dscores(buffer, tile);
      wgmma_fence();
      if constexpr (C::kTiles == 1) multiply_dv(tile);
      multiply_dk(tile);
      wgmma_commit();
      if (tile + 1 < C::kTiles) {
        multiply_scores(tile + 1);
        wgmma_commit();
      }
      sum_over_keys(buffer, tile);
      if (tile + 1 == C::kTiles) arrive_warp(&s_.dscores_full[buffer]);
    }
    const Delivery own = {b_, h_, m_, turn_, false};
    ++count_;
    if (has_pending_) {
      issue_pending(buffer ^ 1);
      const SplitSum sum = query_sum(buffer ^ 1);
      wgmma_wait<0>();
      pin_gradients();
      release_stage();
      send_pending(buffer ^ 1, sum);
    } else {
      wgmma_wait<0>();
      pin_gradients();
      release_stage();
    }
    pending_ = own;
    has_pending_ = true;
  }

  // The last that a task does with its keys, which will be overwritten.
  __device__ __forceinline__ void finish_pending() {
    if (!has_pending_) return arrive_warp(&s_.keys_empty);
    const int buffer = (count_ - 1) % 2;
    issue_pending(buffer, /*steps_since=*/0);
    const SplitSum sum = query_sum(buffer);
    wgmma_wait<0>();
    arrive_warp(&s_.keys_empty);
    send_pending(buffer, sum);
    has_pending_ = false;
  }

  // dQ of the step before the last `steps_since`, of which `buffer` holds dS.
  __device__ __forceinline__ void issue_pending(int buffer, int steps_since = 1) {
    const int step = count_ - 1 - steps_since;
    wait(shared_address(&s_.dscores_full[buffer]), step / 2 % 2);
    wgmma_fence();
    multiply_dq(buffer);
    wgmma_commit();
  }

  __device__ __forceinline__ void send_pending(int buffer, const SplitSum& sum) {
    pin(dweights_);
    send_dq(sum);
    arrive_warp(&s_.dscores_empty[buffer]);
  }

  __device__ __forceinline__ void arrive_warp(uint64_t* barrier) const {
    __syncwarp();
    if (thread_ % 32 == 0) arrive(shared_address(barrier));
  }

  __device__ __forceinline__ void pin_gradients() {
    pin(dk_);
    pin(dv_);
  }

  // Left operand: 64 rows of a tile of 128 keys; right: 64 rows of queries; depth: dimensions.
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
                                     advanced(a, half * kKeysPerBlock * kRowBytes + within),
                                     advanced(b, half * kPieceBytes + within),
                                     step > 0);
    }
  }
  // The left operand is zero from depth 8 on: the right one repeats itself there.
  __device__ __forceinline__ void add_split_numbers(const uint32_t* left,
                                                    const SplitNumber* right,
                                                    float (&sums)[kQueriesPerTile / 2]) {
    wgmma_registers<kQueriesPerTile, __nv_bfloat16, Contiguous::kDepth>(
        sums, left, plain_descriptor(shared_address(right), 0, 128), 1);
  }

  __device__ __forceinline__ void multiply_scores(int tile) {
    multiply_rows(s_.keys, s_.queries[stage_.index] + tile * kPieceBytes, scores_);
    add_split_numbers(key_bias_, s_.records[stage_.index][tile].logits, scores_);
  }
  __device__ __forceinline__ void multiply_dweights(int tile) {
    constexpr uint32_t kOne = 0x3F80, kTwoOnes = 0x3F803F80;
    const uint32_t word = thread_ % 4 == 0 ? kTwoOnes : thread_ % 4 == 1 ? kOne : 0;
    const uint32_t ones[4] = {word, word, 0, 0};
    multiply_rows(s_.values, s_.douts[stage_.index] + tile * kPieceBytes, dweights_);
    add_split_numbers(ones, s_.records[stage_.index][tile].deltas, dweights_);
  }

  __device__ __forceinline__ void hide(int tile) {
    const Problem& problem = p_.task.problem;
    const int start = s_.steps[stage_.index].start;
#pragma unroll
    for (int j = 0; j < kQueriesPerTile / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int query = m_ * C::kQueries + tile * kQueriesPerTile + 8 * j + thread_ % 4 * 2 + e;
        KeyRange visible;
        if (query < problem.Tq) visible = keys_from(problem, b_, start, query);
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
      weights_[2 * j] = packed(scores_[4 * j], scores_[4 * j + 1], Scalar());
      weights_[2 * j + 1] = packed(scores_[4 * j + 2], scores_[4 * j + 3], Scalar());
    }
  }

  // dweights_ becomes dS^T; a weight of 0 gives 0 whatever dP is.
  __device__ __forceinline__ void differentiate_weights() {
    float sums[2] = {};
#pragma unroll
    for (int j = 0; j < kQueriesPerTile / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        dweights_[4 * j + e] *= scores_[4 * j + e];
        sums[e / 2] += dweights_[4 * j + e];
      }
      dscores_[2 * j] = packed(dweights_[4 * j], dweights_[4 * j + 1], Scalar());
      dscores_[2 * j + 1] = packed(dweights_[4 * j + 2], dweights_[4 * j + 3], Scalar());
    }
    add_to(key_sums_[0], sums[0]);
    add_to(key_sums_[1], sums[1]);
  }

  // Of 2 kKept sums the first or the second half stays with a lane, and gains those of its partner.
  template <int kKept>
  static __device__ __forceinline__ void exchange_halves(float (&sums)[kQueriesPerTile / 4],
                                                         int lane) {
    const bool upper = lane & 2 * kKept;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const float own = upper ? sums[kKept + i] : sums[i];
      const float other = upper ? sums[i] : sums[kKept + i];
      sums[i] = own + __shfl_xor_sync(~0U, other, 2 * kKept);
    }
  }

  // Sums of dS over the 16 keys of each warp, for 64 queries. Lanes that hold the same queries
  // exchange halves until each has two sums of its own.
  __device__ __forceinline__ void sum_over_keys(int buffer, int tile) {
    float sums[kQueriesPerTile / 4];
#pragma unroll
    for (int i = 0; i < kQueriesPerTile / 4; ++i) {
      sums[i] = dweights_[i / 2 * 4 + i % 2] + dweights_[i / 2 * 4 + i % 2 + 2];
    }
    const int lane = thread_ % 32;
    exchange_halves<8>(sums, lane);
    exchange_halves<4>(sums, lane);
    exchange_halves<2>(sums, lane);
    float* to = s_.query_sums[buffer][tile][warpgroup_ * 4 + thread_ / 32];
    reinterpret_cast<float2*>(to)[lane / 4 * 4 + lane % 4] = {sums[0], sums[1]};
  }

  __device__ __forceinline__ void store_dscores(int buffer, int tile) {
    const int row = warpgroup_ * kOwnKeys + thread_ / 32 * 16 + thread_ % 32 / 4;
    const uint32_t base =
        shared_address(s_.dscores[buffer][tile]) + row * kRowBytes + thread_ % 4 * 4;
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

  // dV += P^T dO
  __device__ __forceinline__ void multiply_dv(int tile) {
    add_product(weights_, s_.douts[stage_.index] + tile * kPieceBytes, dv_);
  }
  // dK += dS^T Q
  __device__ __forceinline__ void multiply_dk(int tile) {
    add_product(dscores_, s_.queries[stage_.index] + tile * kPieceBytes, dk_);
  }
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

  // This warpgroup's part of dQ = dS K over all 128 keys, into dweights_: of its tile of the step,
  // or of its half of the dimensions.
  __device__ __forceinline__ void multiply_dq(int buffer) {
    const int tile = C::kTiles == kConsumers ? warpgroup_ : 0, half = warpgroup_ % C::kHalves;
    const uint64_t ds = swizzled_descriptor(shared_address(s_.dscores[buffer][tile]), 16, 1024);
    const uint64_t k =
        swizzled_descriptor(shared_address(s_.keys) + half * kKeysPerBlock * kRowBytes, 16, 1024);
#pragma unroll
    for (int step = 0; step < kKeysPerBlock / 16; ++step) {
      wgmma<64, Scalar, Contiguous::kRows, Contiguous::kRows>(dweights_,
                                                              advanced(ds, step * 16 * kRowBytes),
                                                              advanced(k, step * 16 * kRowBytes),
                                                              step > 0);
    }
  }

  // dS of one query of the own part, summed over the keys while the matrix unit multiplies dQ.
  __device__ __forceinline__ SplitSum query_sum(int buffer) const {
    const int tile = C::kTiles == kConsumers ? warpgroup_ : 0;
    SplitSum sum;
#pragma unroll
    for (int warp = 0; warp < kConsumers * 4; ++warp) {
      add_to(sum, s_.query_sums[buffer][tile][warp][thread_ % kQueriesPerTile]);
    }
    return sum;
  }

  // A part is [register quad][thread][4]: whoever reads it back knows what it holds.
  __device__ __forceinline__ void send_dq(const SplitSum& sum) {
    wait_for_delivery();
    auto* part = reinterpret_cast<float4*>(s_.dq[warpgroup_]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      part[j * kWarpgroup + thread_] = {
          dweights_[4 * j], dweights_[4 * j + 1], dweights_[4 * j + 2], dweights_[4 * j + 3]};
    }
    if (thread_ < kQueriesPerTile) s_.dq_sums[warpgroup_][thread_] = sum;
    fence_for_async();
    sync_threads(3 + warpgroup_, kWarpgroup);
    post(pending_);
  }

  __device__ __forceinline__ void wait_for_delivery() {
    wait(shared_address(&s_.dq_empty[warpgroup_]), delivery_parity_ ^ 1);
    delivery_parity_ ^= 1;
  }
  __device__ __forceinline__ void post(const Delivery& part) {
    if (thread_ != 0) return;
    s_.deliveries[warpgroup_] = part;
    arrive(shared_address(&s_.dq_full[warpgroup_]));
  }
  __device__ __forceinline__ void send(const Delivery& part) {
    wait_for_delivery();
    post(part);
  }

  // ---- results ----

  __device__ __forceinline__ void store_key_sums() {
    const Problem& problem = p_.task.problem;
    if (!p_.task.dkey_sums) return;
    const int64_t head = int64_t{b_} * problem.H + h_;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      double sum = whole(key_sums_[r]);
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      if (thread_ % 4 == 0 && key(r) < problem.Tk) {
        p_.task.dkey_sums[head * problem.Tk + key(r)] = -sum;
      }
    }
  }

  // Of a head that has keys of its own.
  __device__ __forceinline__ void store_rows(const Operand& to,
                                             const float (&sums)[C::kDim / 2],
                                             float factor) const {
    const Problem& problem = p_.task.problem;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (key(r) >= problem.Tk) continue;
      auto* row =
          static_cast<Scalar*>(to.data) + b_ * to.batch + int64_t{key(r)} * to.time + h_ * to.head;
#pragma unroll
      for (int j = 0; j < C::kDim / 8; ++j) {
        const int d = 8 * j + thread_ % 4 * 2;
        if (d >= problem.D) continue;
        *reinterpret_cast<uint32_t*>(row + d) =
            packed(sums[4 * j + 2 * r] * factor, sums[4 * j + 2 * r + 1] * factor, Scalar());
      }
    }
  }

  // In parts of 64 keys and 64 dimensions, each [register quad][thread][4].
  __device__ __forceinline__ void store_parts(float* to, const float (&sums)[C::kDim / 2]) const {
#pragma unroll
    for (int j = 0; j < C::kDim / 8; ++j) {
      reinterpret_cast<float4*>(to)[j * kWarpgroup + thread_] = {
          sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
    }
  }

  __device__ __forceinline__ void finish_task() {
    finish_pending();
    store_key_sums();
    if (!p_.head_sums) {
      store_rows(p_.task.dk, dk_, p_.task.problem.scale);
      store_rows(p_.task.dv, dv_, 1);
      return;
    }
    const int64_t task = (int64_t{b_} * p_.task.problem.H + h_) * p_.num_key_blocks + n_;
    float* parts = p_.head_sums + (task * kConsumers + warpgroup_) * 2 * C::kHalves * kPartFloats;
    store_parts(parts, dk_);
    store_parts(parts + C::kHalves * kPartFloats, dv_);
  }

  const Params& p_;
  Shared<C>& s_;
  const int warpgroup_, thread_;
  const float scale2_;
  Stage<kStages> stage_;
  int count_ = 0;          // of steps
  Delivery pending_ = {};  // what the dQ of the step before will be delivered as
  bool has_pending_ = false;
  uint32_t delivery_parity_ = 0;
  int b_ = 0, h_ = 0, m_ = 0, n_ = 0, turn_ = 0;
  bool is_edge_ = false;  // whether some query does not see some of the own keys
  SplitSum last_;         // of the key block
  uint32_t key_bias_[4];
  typename C::KeySum key_sums_[2];
  float scores_[kQueriesPerTile / 2], dweights_[kQueriesPerTile / 2];
  uint32_t weights_[kQueriesPerTile / 4], dscores_[kQueriesPerTile / 4];
  float dk_[C::kDim / 2], dv_[C::kDim / 2];
};

}  // namespace reynard::attention::cuda::sm90::bwd
