#pragma once
// The computing side of the forward kernel: a warpgroup owns 64 queries of each task; their scores,
// weights and sums stay in registers.

#include "reynard/attention/cuda/logarithms.cuh"
#include "reynard/attention/cuda/sm90/forward_config.cuh"
#include "reynard/attention/cuda/sm90/wgmma.cuh"
#include "reynard/attention/cuda/visibility.cuh"

namespace reynard::attention::cuda::sm90::fwd {

constexpr auto kLn2High = static_cast<float>(kLn2), kLn2Low = static_cast<float>(kLn2 - kLn2High);

// What the rows of a warpgroup see of a key block: it may hold their own keys, or they see all of
// it, or keys at its begin are pruned.
enum class Seen { kOwn, kWhole, kEnd };

template <class C>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Params& p, Shared<C>& s, int warpgroup)
      : p_(p),
        s_(s),
        warpgroup_(warpgroup),
        thread_(threadIdx.x % kWarpgroup),
        scale2_(static_cast<float>(p.task.problem.scale * kLog2E)) {}

  __device__ __forceinline__ void run() {
    // The first turn at the matrix unit is the first warpgroup's.
    if (warpgroup_ == C::kWarpgroups - 1) arrive_threads(1, 2 * kWarpgroup);
    for (int turn = 0;; ++turn) {
      slot_ = turn % C::kQuerySlots;
      wait(shared_address(&s_.query_full[slot_]), (turn / C::kQuerySlots) & 1);
      const volatile QueryTask& shared = s_.tasks[slot_];
      const int m = shared.m;
      if (m < 0) break;
      head_ = shared.head, batch_ = shared.batch;
      first_row_ = m * C::kRows + warpgroup_ * 64;
      start_ = shared.starts[warpgroup_];
      attend({shared.blocks.first, shared.blocks.last});
      finish();
    }
    if (thread_ == 0) wait_stores();
  }

 private:
  // What the rows see.

  __device__ __forceinline__ int own_row(int r) const {  // of the warpgroup's 64
    return thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * r;
  }
  __device__ __forceinline__ int row(int r) const { return first_row_ + own_row(r); }

  __device__ __forceinline__ int head_in_batch() const {
    return head_ - batch_ * p_.task.problem.H;
  }

  __device__ __forceinline__ KeyRange keys_of(int query) const {
    return keys_from(p_.task.problem, batch_, start_, query);
  }

  __device__ __forceinline__ void look() {
    const Problem& problem = p_.task.problem;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      visible_[r] = {};
      if (row(r) < problem.Tq) visible_[r] = keys_of(row(r));
      reference_[r] = kLowest;
      total_[r] = 0;
      if constexpr (C::kGated) own_sum_[r] = s_.query_sums[slot_][warpgroup_ * 64 + own_row(r)];
    }
    own_ = {};
    full_begin_ = full_end_ = last_end_ = 0;
    if (first_row_ >= problem.Tq) return;
    const KeyRange top = keys_of(first_row_);
    const KeyRange bottom = keys_of(min(first_row_ + 63, problem.Tq - 1));
    if (bottom.end <= top.begin) return;
    last_end_ = bottom.end;
    own_ = {top.begin / C::kKeys, (bottom.end - 1) / C::kKeys};
    // A first key may be any number: near the largest, rounding up would make it negative.
    full_begin_ = div_up(min(bottom.begin, bottom.end), C::kKeys);
    full_end_ = top.end / C::kKeys;
  }

  // The walk over key blocks.

  __device__ __forceinline__ void attend(const BlockRange& blocks) {
    look();
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) out_[i] = 0;
    int n = blocks.last;
    for (; n >= blocks.first && n > own_.last; --n) skip_block();
    if (n >= blocks.first && n >= own_.first) {
      // Every second warpgroup sees only the first half of the block with its own keys.
      if (C::kKeys == 64 || last_end_ - n * C::kKeys <= 64) {
        first_block<64>(n);
      } else {
        first_block<C::kKeys>(n);
      }
      --n;
      const int first_full = max(full_begin_, own_.first);
      for (; n >= own_.first && n >= full_end_; --n) next_block<Seen::kOwn>(n);
      for (; n >= first_full; --n) next_block<Seen::kWhole>(n);
      for (; n >= own_.first; --n) next_block<Seen::kEnd>(n);
      wait(shared_address(&s_.value_full[values_.index]), values_.parity);
      wgmma_fence();
      multiply_values();
      wgmma_commit();
      wait_for_values();
    }
    for (; n >= blocks.first; --n) skip_block();
  }

  // Warpgroups take turns to issue products, so that one computes weights while another multiplies.
  __device__ __forceinline__ void begin_turn() {
    sync_threads(1 + warpgroup_, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void end_turn() {
    const int next = warpgroup_ + 1 == C::kWarpgroups ? 0 : warpgroup_ + 1;
    arrive_threads(1 + next, 2 * kWarpgroup);
  }

  // A block that only other warpgroups read.
  __device__ __forceinline__ void skip_block() {
    wait(shared_address(&s_.key_full[keys_.index]), keys_.parity);
    release_keys();
    wait(shared_address(&s_.value_full[values_.index]), values_.parity);
    release_values();
    begin_turn();
    end_turn();
  }

  // Nobody sees more than the first kKeys of the block.
  template <int kKeys>
  __device__ __forceinline__ void first_block(int n) {
    auto& scores = reinterpret_cast<float(&)[kKeys / 2]>(scores_);
    wait(shared_address(&s_.key_full[keys_.index]), keys_.parity);
    begin_turn();
    wgmma_fence();
    multiply_keys</*kBiased=*/false, kKeys>(n);
    wgmma_commit();
    end_turn();
    wgmma_wait<0>();
    pin(scores);
    release_stored_queries();
    add_exact_bias<kKeys>(n);
    release_keys();
    hide<kKeys>(n);
    float top[2];
    row_maxima<kKeys>(top);
#pragma unroll
    for (int r = 0; r < 2; ++r) reference_[r] = fmaxf(kLowest, top[r] * unit<Seen::kOwn>());
    const float none[2] = {};
    weigh<kKeys, Seen::kOwn>(none, total_);
#pragma unroll
    for (int i = kKeys / 4; i < C::kKeys / 4; ++i) weights_[i] = 0;
  }

  // Scores of block n while the values of the block before are multiplied.
  template <Seen kSeen>
  __device__ __forceinline__ void next_block(int n) {
    wait(shared_address(&s_.key_full[keys_.index]), keys_.parity);
    begin_turn();
    wgmma_fence();
    multiply_keys<kSeen != Seen::kOwn>(n);
    wgmma_commit();
    wait(shared_address(&s_.value_full[values_.index]), values_.parity);
    multiply_values();
    wgmma_commit();
    end_turn();
    wgmma_wait<1>();
    pin(scores_);
    // c_i - c_j of the block's last key, in powers of two.
    float shift[2] = {};
    if constexpr (C::kGated && kSeen != Seen::kOwn) {
      const SplitSum last = s_.bias[keys_.index].sums[key_in_record(n) + C::kKeys - 1];
      shift[0] = difference(own_sum_[0], last);
      shift[1] = difference(own_sum_[1], last);
    }
    if constexpr (kSeen == Seen::kOwn) add_exact_bias<C::kKeys>(n);
    release_keys();
    if constexpr (kSeen == Seen::kOwn) hide<C::kKeys>(n);
    if constexpr (kSeen == Seen::kEnd) hide_begin(n);
    float sums[2];
    if constexpr (C::kLooksForMaxima) {
      const bool exceeds = kSeen == Seen::kOwn || exceeds_reference(shift);
      wait_for_values();
      if (__any_sync(~0U, exceeds)) raise_references<kSeen>(shift);
      weigh<C::kKeys, kSeen>(shift, sums);
    } else {
      wait_for_values();
      // Raised once: scores that are rounded by more than the slack stay above their reference.
      for (float largest = kLargestSum;; largest = INFINITY) {
        weigh<C::kKeys, kSeen>(shift, sums);
        if (!__any_sync(~0U, sums[0] > largest || sums[1] > largest)) break;
        raise_references<kSeen>(shift);
      }
    }
    total_[0] += sums[0], total_[1] += sums[1];
  }

  // Until those of the block before are summed.
  __device__ __forceinline__ void wait_for_values() {
    wgmma_wait<0>();
    pin(out_);
    release_values();
  }

  __device__ __forceinline__ void release_keys() {
    __syncwarp();  // all lanes have read what the block brought
    arrive_for_group(shared_address(&s_.key_empty[keys_.index]), thread_ % 32);
    keys_.next();
  }
  __device__ __forceinline__ void release_values() {  // only the matrix unit has read them
    arrive_for_group(shared_address(&s_.value_empty[values_.index]), thread_ % 32);
    values_.next();
  }

  // Products.

  __device__ __forceinline__ uint32_t own_queries() const {
    return shared_address(s_.queries[slot_]) + warpgroup_ * 64 * kRowBytes;
  }

  // First key of block n in its record.
  static __device__ __forceinline__ int key_in_record(int n) {
    return n % C::kBlocksPerRecord * C::kKeys;
  }

  template <bool kBiased, int kKeys = C::kKeys>
  __device__ __forceinline__ void multiply_keys(int n) {
    auto& scores = reinterpret_cast<float(&)[kKeys / 2]>(scores_);
    const uint64_t q = swizzled_descriptor(own_queries(), 16, 1024);
    const uint64_t k = swizzled_descriptor(shared_address(s_.keys[keys_.index]), 16, 1024);
#pragma unroll
    for (int step = 0; step < C::kDim / 16; ++step) {
      const int half = step / 4, within = step % 4 * 32;
      wgmma<kKeys, typename C::Scalar>(scores,
                                       advanced(q, half * C::kRows * kRowBytes + within),
                                       advanced(k, half * C::kKeys * kRowBytes + within),
                                       step > 0);
    }
    if constexpr (C::kGated && kBiased) {
      // Rows of depth 0 to 7 repeat themselves on the left; the right operand does from depth 8 on,
      // where the left one is zero.
      wgmma<C::kKeys, __nv_bfloat16>(
          scores_,
          plain_descriptor(shared_address(s_.ones), sizeof s_.ones, 0),
          plain_descriptor(shared_address(s_.bias[keys_.index].keys + key_in_record(n)), 0, 128),
          1);
    }
  }

  __device__ __forceinline__ void multiply_values() {
    constexpr int kColumns = C::kDim < 128 ? C::kDim : 128;  // of one instruction
    const uint64_t v =
        swizzled_descriptor(shared_address(s_.values[values_.index]), C::kKeys * kRowBytes, 1024);
#pragma unroll
    for (int step = 0; step < C::kKeys / 16; ++step) {
#pragma unroll
      for (int part = 0; part < C::kDim / kColumns; ++part) {
        auto& out = *reinterpret_cast<float(*)[kColumns / 2]>(out_ + part * kColumns / 2);
        const int half = part * kColumns / 64;
        wgmma_registers<kColumns, typename C::Scalar, Contiguous::kRows>(
            out,
            weights_ + 4 * step,
            advanced(v, step * 16 * kRowBytes + half * C::kKeys * kRowBytes),
            1);
      }
    }
  }

  // Softmax.

  // What a score is worth in powers of two; those with exact biases are powers already.
  template <Seen kSeen>
  __device__ __forceinline__ float unit() const {
    return kSeen == Seen::kOwn ? 1 : scale2_;
  }

  // Scores become logits in powers of two, with c_i - c_j of the keys in the ring.
  template <int kKeys>
  __device__ __forceinline__ void add_exact_bias(int n) {
    const auto* pairs =
        reinterpret_cast<const float4*>(s_.bias[keys_.index].sums + key_in_record(n));
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      SplitSum keys[2];
      if constexpr (C::kGated) {
        const float4 pair = pairs[4 * j + thread_ % 4];
        keys[0] = {pair.x, pair.y}, keys[1] = {pair.z, pair.w};
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& score = scores_[4 * j + e];
        const SplitSum &own = own_sum_[e / 2], &key = keys[e % 2];
        // Rounded in between without gates too: open gates give the bits of none.
        score = C::kGated ? fmaf(score, scale2_, own.low - key.low) + (own.high - key.high)
                          : __fmul_rn(score, scale2_);
      }
    }
  }

  // Scores of keys that a row must not see.
  template <int kKeys>
  __device__ __forceinline__ void hide(int n) {
    const int base = n * C::kKeys + thread_ % 4 * 2;
    const int ends[2] = {visible_[0].end - base, visible_[1].end - base};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      if (i / 4 * 8 + i % 2 >= ends[i / 2 % 2]) scores_[i] = -INFINITY;
    }
    if (n < full_begin_) hide_begin(n);  // the same for all threads
  }
  __device__ __forceinline__ void hide_begin(int n) {
    const int base = n * C::kKeys + thread_ % 4 * 2;
    const int begins[2] = {visible_[0].begin - base, visible_[1].begin - base};
#pragma unroll
    for (int i = 0; i < C::kKeys / 2; ++i) {
      if (i / 4 * 8 + i % 2 < begins[i / 2 % 2]) scores_[i] = -INFINITY;
    }
  }

  template <int kKeys>
  __device__ __forceinline__ void row_maxima(float (&top)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float even = scores_[2 * r], odd = scores_[2 * r + 1];
#pragma unroll
      for (int j = 1; j < kKeys / 8; ++j) {
        even = fmaxf(even, scores_[4 * j + 2 * r]);
        odd = fmaxf(odd, scores_[4 * j + 2 * r + 1]);
      }
      top[r] = fmaxf(even, odd);
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0U, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0U, top[r], 2));
    }
  }

  // Whether a reference must be raised. Scores below 0 count as 0 (told too often, never too
  // seldom): bits then order as integers do, of which one instruction compares three.
  __device__ __forceinline__ bool exceeds_reference(const float (&shift)[2]) const {
    const auto bits = [&](int i) { return __float_as_int(scores_[i]); };
    bool exceeds = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int even = 0, odd = 0;
#pragma unroll
      for (int j = 0; j < C::kKeys / 8; j += 2) {
        even = __vimax3_s32(even, bits(4 * j + 2 * r), bits(4 * j + 2 * r + 1));
        odd = __vimax3_s32(odd, bits(4 * j + 2 * r + 4), bits(4 * j + 2 * r + 5));
      }
      const float top = __int_as_float(max(even, odd));
      exceeds |= fmaf(top, scale2_, shift[r] - reference_[r]) > kLargestExcess;
    }
    return exceeds;
  }

  // References become the exact maxima so far; what was summed is brought to them.
  template <Seen kSeen>
  __device__ __forceinline__ void raise_references(const float (&shift)[2]) {
    float top[2], keep[2];
    row_maxima<C::kKeys>(top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float raised = fmaxf(reference_[r], fmaf(top[r], unit<kSeen>(), shift[r]));
      keep[r] = exp2_approx(reference_[r] - raised);
      reference_[r] = raised;
      total_[r] *= keep[r];
    }
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) out_[i] *= keep[i / 2 % 2];
  }

  // Weights of a block as the left operand of the next product, and a lane's sums of them.
  template <int kKeys, Seen kSeen>
  __device__ __forceinline__ void weigh(const float (&shift)[2], float (&of_rows)[2]) {
    const float minus[2] = {shift[0] - reference_[0], shift[1] - reference_[1]};
    float sums[4] = {};
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      float w[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        w[e] = exp2_approx(fmaf(scores_[4 * j + e], unit<kSeen>(), minus[e / 2]));
        sums[e] += w[e];
      }
      weights_[2 * j] = packed(w[0], w[1], typename C::Scalar());
      weights_[2 * j + 1] = packed(w[2], w[3], typename C::Scalar());
    }
    of_rows[0] = sums[0] + sums[1];
    of_rows[1] = sums[2] + sums[3];
  }

  // Results.

  __device__ __forceinline__ void finish() {
    const Problem& problem = p_.task.problem;
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total_[r] += __shfl_xor_sync(~0U, total_[r], 1);
      total_[r] += __shfl_xor_sync(~0U, total_[r], 2);
      inverse[r] = total_[r] == 0 ? 0 : __fdividef(1, total_[r]);  // NaN stays
      const float lse = log_sum_exp(r);
      if (thread_ % 4 == 0 && row(r) < problem.Tq) {
        p_.task.lse[int64_t{head_} * problem.Tq + row(r)] = lse;
      }
    }
    release_stored_queries();  // of a task without keys
    stored_slot_ = slot_;
    if (p_.task.out.element != Element::kFloat) {
      store_tiles(inverse);
    } else {
      store_wide(inverse);
      sync_threads(8 + warpgroup_, kWarpgroup);  // nobody reads the queries any more
    }
    if constexpr (C::kQuerySlots == 1) release_stored_queries();
  }

  // The queries of the task before, once its output, which lay there, was read.
  __device__ __forceinline__ void release_stored_queries() {
    if (stored_slot_ < 0) return;
    if (thread_ == 0) wait_stores_read();
    arrive_for_group(shared_address(&s_.query_empty[stored_slot_]), thread_);
    stored_slot_ = -1;
  }

  __device__ __forceinline__ float log_sum_exp(int r) const {
    const float log2 = reference_[r] + __log2f(total_[r]);
    return total_[r] == 0 ? -INFINITY : fmaf(log2, kLn2High, log2 * kLn2Low);
  }

  // Through the queries' shared memory, which is not needed any more.
  __device__ __forceinline__ void store_tiles(const float (&inverse)[2]) {
    const uint32_t tile = own_queries();
    const int in_tile = thread_ / 32 * 16 + thread_ % 32 / 4;
#pragma unroll
    for (int j = 0; j < C::kDim / 8; ++j) {
      const uint32_t address = tile + j / 8 * C::kRows * kRowBytes + in_tile * kRowBytes +
                               (((j & 7) ^ (in_tile & 7)) << 4) + thread_ % 4 * 4;
      const float* o = out_ + 4 * j;
      const auto store = [](uint32_t to, uint32_t pair) {
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pair) : "memory");
      };
      store(address, packed(o[0] * inverse[0], o[1] * inverse[0], typename C::Scalar()));
      store(address + 8 * kRowBytes,
            packed(o[2] * inverse[1], o[3] * inverse[1], typename C::Scalar()));
    }
    fence_for_async();
    sync_threads(8 + warpgroup_, kWarpgroup);
    if (thread_ != 0) return;
    if (first_row_ < p_.task.problem.Tq) {
      for (int half = 0; half < C::kHalves; ++half) {
        store_tile(p_.out,
                   tile + half * C::kRows * kRowBytes,
                   {half * 64, first_row_, head_in_batch(), batch_});
      }
    }
    commit_stores();
  }

  // f32, when several key parts will be combined.
  __device__ __forceinline__ void store_wide(const float (&inverse)[2]) {
    const Problem& problem = p_.task.problem;
    const Operand& to = p_.task.out;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row(r) >= problem.Tq) continue;
      float* out = static_cast<float*>(to.data) + batch_ * to.batch + int64_t{row(r)} * to.time +
                   head_in_batch() * to.head;
#pragma unroll
      for (int j = 0; j < C::kDim / 8; ++j) {
        const int d = 8 * j + thread_ % 4 * 2;
        if (d >= problem.D) continue;
        out[d] = out_[4 * j + 2 * r] * inverse[r];
        out[d + 1] = out_[4 * j + 2 * r + 1] * inverse[r];
      }
    }
  }

  const Params& p_;
  Shared<C>& s_;
  const int warpgroup_, thread_;
  const float scale2_;
  int slot_ = 0, head_ = 0, batch_ = 0, first_row_ = 0, start_ = 0;
  int stored_slot_ = -1;  // of queries to be released
  Stage<C::kStages> keys_, values_;
  KeyRange visible_[2];
  BlockRange own_;                     // blocks that this warpgroup reads
  int full_begin_ = 0, full_end_ = 0;  // blocks that every row sees whole
  int last_end_ = 0;                   // of the keys that the last row sees
  SplitSum own_sum_[2];                // of the rows
  float scores_[C::kKeys / 2];
  uint32_t weights_[C::kKeys / 4];
  float out_[C::kDim / 2];
  float reference_[2], total_[2];
};

}  // namespace reynard::attention::cuda::sm90::fwd
