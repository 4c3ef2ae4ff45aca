// One block of threads per processor takes query blocks from a list, costly ones first. A warp of
// it loads tiles with the copy engine; each warpgroup of the others owns 64 queries: their scores,
// weights and sums stay in registers. Key blocks go from the diagonal to the past.
//
// The bias of the keys is added by the matrix unit (plan.h); at the edges, where a query's own keys
// lie, it is added in registers from the f64 sums, since a logit near 0 must not pass through a
// score of hundreds. The maximum that a row subtracts is raised only when a score exceeds it by
// 2^8, so that sums are seldom rescaled.

#include "reynard/attention/cuda/sm90/forward.h"

#include "reynard/attention/cuda/launch.h"
#include "reynard/attention/cuda/registers.cuh"
#include "reynard/attention/cuda/sm90/copy.cuh"
#include "reynard/attention/cuda/sm90/plan.h"
#include "reynard/attention/cuda/sm90/tensor_map.h"
#include "reynard/attention/cuda/sm90/wgmma.cuh"
#include "reynard/attention/cuda/visibility.cuh"

#include <cmath>

namespace reynard::attention::cuda::sm90 {

namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.69314718055994531;
constexpr float kLowest = -1e30F;    // finite, so that differences of references are
constexpr float kLargestExcess = 8;  // of a score over its row's reference, in powers of two
constexpr int kStages = 2;

// kDim: head dimension rounded up to 64 or 128.
template <int kDim_, class Scalar_, bool kGated_, bool kWithValues_>
struct Config {
  static constexpr int kDim = kDim_;
  using Scalar = Scalar_;
  static constexpr bool kGated = kGated_, kWithValues = kWithValues_;
  // More warpgroups hide more of each other's softmax; 64 x 128 sums leave room for two only.
  static constexpr int kWarpgroups = kDim == 64 ? 3 : 2;
  static constexpr int kRows = 64 * kWarpgroups;
  static constexpr int kThreads = (kWarpgroups + 1) * kWarpgroup;
  static constexpr int kConsumerRegisters = kDim == 64 ? 160 : 240;
  static constexpr int kProducerRegisters = kDim == 64 ? 32 : 24;
  static constexpr int kHalves = kDim / 64;  // tiles of 64 dimensions
  static constexpr int kQueryBytes = kRows * kDim * 2, kKeyBytes = kKeysPerBlock * kDim * 2;
};

struct Task {
  int b, h, m;
  BlockRange blocks;
};

template <class C>
struct alignas(1024) Shared {
  char queries[2][C::kQueryBytes];
  char keys[kStages][C::kKeyBytes];
  // Before the values: an operand that repeats itself counts as longer than it is when addresses
  // are checked (compute-sanitizer).
  alignas(128) BiasRecord bias[kStages];
  alignas(1024) char values[C::kWithValues ? kStages : 1][C::kWithValues ? C::kKeyBytes : 1024];
  alignas(16) Task tasks[2];
  uint64_t query_full[2], query_empty[2];
  uint64_t key_full[kStages], key_empty[kStages];
  uint64_t value_full[kStages], value_empty[kStages];
};

struct Params {
  CUtensorMap q, k, v, out;
  ForwardTask task;
  const BiasRecord* records;
  Plan plan;
  int num_tasks, num_query_blocks, num_key_blocks;
};

template <class C>
__device__ void prepare_shared(Shared<C>& s) {
  for (int i = 0; i < 2; ++i) {
    init_barrier(shared_address(&s.query_full[i]), 1);
    init_barrier(shared_address(&s.query_empty[i]), C::kWarpgroups);
  }
  for (int i = 0; i < kStages; ++i) {
    init_barrier(shared_address(&s.key_full[i]), 1);
    init_barrier(shared_address(&s.key_empty[i]), C::kWarpgroups * 4);
    init_barrier(shared_address(&s.value_full[i]), 1);
    init_barrier(shared_address(&s.value_empty[i]), C::kWarpgroups * 4);
  }
  fence_barrier_init();
}

// One thread: takes tasks and keeps the rings of tiles full.
template <class C>
class Producer {
 public:
  __device__ Producer(const Params& p, Shared<C>& s) : p_(p), s_(s) {}

  __device__ void run() {
    const Problem& problem = p_.task.problem;
    for (int turn = 0;; ++turn) {
      const int slot = turn & 1;
      const int next = atomicAdd(p_.plan.next_task, 1);
      wait(shared_address(&s_.query_empty[slot]), ((turn >> 1) & 1) ^ 1);
      const uint32_t full = shared_address(&s_.query_full[slot]);
      if (next >= p_.num_tasks) {
        s_.tasks[slot].m = -1;
        arrive(full);
        return;
      }
      const int index = p_.plan.order[next];
      const int head = index / p_.num_query_blocks;
      const Task task = {
          head / problem.H, head % problem.H, index % p_.num_query_blocks, p_.plan.ranges[index]};
      s_.tasks[slot] = task;
      arrive_expecting(full, C::kQueryBytes);
      for (int half = 0; half < C::kHalves; ++half) {
        load_tile(shared_address(s_.queries[slot]) + half * C::kRows * kRowBytes,
                  p_.q,
                  {half * 64, task.m * C::kRows, task.h, task.b},
                  full);
      }
      load_blocks(task);
    }
  }

 private:
  // Values follow their keys by one block, as they are used.
  __device__ void load_blocks(const Task& task) {
    const auto [first, last] = task.blocks;
    for (int n = last; n >= first; --n) {
      load_keys(task, n);
      if (C::kWithValues && n < last) load_values(task, n + 1);
    }
    if (C::kWithValues && last >= first) load_values(task, first);
  }

  __device__ void load_keys(const Task& task, int n) {
    const Problem& problem = p_.task.problem;
    const uint32_t full = shared_address(&s_.key_full[keys_.index]);
    wait(shared_address(&s_.key_empty[keys_.index]), keys_.parity ^ 1);
    arrive_expecting(full, C::kKeyBytes + (C::kGated ? sizeof(BiasRecord) : 0));
    load(shared_address(s_.keys[keys_.index]), p_.k, task, n, full);
    if (C::kGated) {
      const int64_t head = int64_t{task.b} * problem.H + task.h;
      load_bytes(shared_address(&s_.bias[keys_.index]),
                 p_.records + head * p_.num_key_blocks + n,
                 sizeof(BiasRecord),
                 full);
    }
    keys_.next();
  }

  __device__ void load_values(const Task& task, int n) {
    const uint32_t full = shared_address(&s_.value_full[values_.index]);
    wait(shared_address(&s_.value_empty[values_.index]), values_.parity ^ 1);
    arrive_expecting(full, C::kKeyBytes);
    load(shared_address(s_.values[values_.index]), p_.v, task, n, full);
    values_.next();
  }

  __device__ void load(
      uint32_t to, const CUtensorMap& map, const Task& task, int n, uint32_t full) {
    const int group = p_.task.problem.H / p_.task.problem.G;
    for (int half = 0; half < C::kHalves; ++half) {
      load_tile(to + half * kKeysPerBlock * kRowBytes,
                map,
                {half * 64, n * kKeysPerBlock, task.h / group, task.b},
                full);
    }
  }

  const Params& p_;
  Shared<C>& s_;
  Stage<kStages> keys_, values_;
};

// One warpgroup: 64 queries of each task.
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
      slot_ = turn & 1;
      wait(shared_address(&s_.query_full[slot_]), (turn >> 1) & 1);
      const volatile Task& shared = s_.tasks[slot_];
      const int m = shared.m;
      if (m < 0) break;
      b_ = shared.b, h_ = shared.h;
      first_row_ = m * C::kRows + warpgroup_ * 64;
      const BlockRange blocks = {shared.blocks.first, shared.blocks.last};
      attend(blocks);
      finish();
    }
    if (thread_ == 0) wait_stores();
  }

 private:
  // ---- what the rows see ----

  __device__ __forceinline__ int row(int r) const {
    return first_row_ + thread_ / 32 * 16 + thread_ % 32 / 4 + 8 * r;
  }

  __device__ __forceinline__ void look() {
    const Problem& problem = p_.task.problem;
    for (int r = 0; r < 2; ++r) {
      visible_[r] = {};
      if (row(r) < problem.Tq) visible_[r] = keys_of_query(problem, b_, h_, row(r));
      reference_[r] = kLowest;
      total_[r] = 0;
    }
    own_ = {};
    full_begin_ = full_end_ = 0;
    if (first_row_ >= problem.Tq) return;
    const KeyRange top = keys_of_query(problem, b_, h_, first_row_);
    const KeyRange bottom = keys_of_query(problem, b_, h_, min(first_row_ + 63, problem.Tq - 1));
    if (bottom.end <= top.begin) return;
    own_ = {top.begin / kKeysPerBlock, (bottom.end - 1) / kKeysPerBlock};
    full_begin_ = div_up(bottom.begin, kKeysPerBlock);
    full_end_ = top.end / kKeysPerBlock;
    if constexpr (C::kGated) measure_decays();
  }

  __device__ __forceinline__ void measure_decays() {
    const Problem& problem = p_.task.problem;
    const int64_t head = int64_t{b_} * problem.H + h_;
    const double base = problem.key_sums[head * problem.Tk + max(own_.last * kKeysPerBlock - 1, 0)];
    base_high_ = static_cast<float>(base * kLog2E);
    base_low_ = static_cast<float>(base * kLog2E - base_high_);
    for (int r = 0; r < 2; ++r) {
      const double sum = problem.query_sums[head * problem.Tq + min(row(r), problem.Tq - 1)];
      row_decay_[r] = static_cast<float>((sum - base) * kLog2E);
    }
  }

  // ---- the walk over key blocks ----

  __device__ __forceinline__ void attend(const BlockRange& blocks) {
    look();
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) out_[i] = 0;
    int n = blocks.last;
    for (; n >= blocks.first && n > own_.last; --n) skip_block();
    if (n >= blocks.first && n >= own_.first) {
      first_block(n);
      for (--n; n >= own_.first; --n) {
        if (n < full_end_ && n >= full_begin_) {
          next_block<false>(n);
        } else {
          next_block<true>(n);
        }
      }
      if (C::kWithValues) {
        wait(shared_address(&s_.value_full[values_.index]), values_.parity);
        wgmma_fence();
        multiply_values();
        wgmma_commit();
        wgmma_wait<0>();
        pin(out_);
        release_values();
      }
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
    if (C::kWithValues) {
      wait(shared_address(&s_.value_full[values_.index]), values_.parity);
      release_values();
    }
    begin_turn();
    end_turn();
  }

  __device__ __forceinline__ void first_block(int n) {
    wait(shared_address(&s_.key_full[keys_.index]), keys_.parity);
    begin_turn();
    wgmma_fence();
    multiply_keys<true>();
    wgmma_commit();
    end_turn();
    wgmma_wait<0>();
    pin(scores_);
    release_keys();
    add_exact_bias(n);
    hide(n);
    const float none[2] = {};
    raise_references(none);
    weigh<true>(none);
  }

  // Scores of block n while the values of the block before are multiplied.
  template <bool kEdge>
  __device__ __forceinline__ void next_block(int n) {
    wait(shared_address(&s_.key_full[keys_.index]), keys_.parity);
    begin_turn();
    wgmma_fence();
    multiply_keys<kEdge>();
    wgmma_commit();
    if constexpr (C::kWithValues) {
      wait(shared_address(&s_.value_full[values_.index]), values_.parity);
      multiply_values();
      wgmma_commit();
    }
    end_turn();
    wgmma_wait<C::kWithValues ? 1 : 0>();
    pin(scores_);
    // c_i - c_j of the block's last key, in powers of two.
    float shift[2] = {};
    if constexpr (C::kGated && !kEdge) {
      const BiasRecord& bias = s_.bias[keys_.index];
      const float decay = (base_high_ - bias.last_high) + (base_low_ - bias.last_low);
      shift[0] = row_decay_[0] + decay;
      shift[1] = row_decay_[1] + decay;
    }
    release_keys();
    if constexpr (kEdge) {
      add_exact_bias(n);
      hide(n);
    }
    const bool exceeds = kEdge || exceeds_reference(shift);
    if constexpr (C::kWithValues) {
      wgmma_wait<0>();
      pin(out_);
      release_values();
    }
    if (__any_sync(~0U, exceeds)) {
      raise_references(shift);
    }
    weigh<false>(shift);
  }

  __device__ __forceinline__ void release_keys() {
    __syncwarp();  // all lanes have read what the block brought
    if (thread_ % 32 == 0) arrive(shared_address(&s_.key_empty[keys_.index]));
    keys_.next();
  }
  __device__ __forceinline__ void release_values() {
    __syncwarp();
    if (thread_ % 32 == 0) arrive(shared_address(&s_.value_empty[values_.index]));
    values_.next();
  }

  // ---- products ----

  __device__ __forceinline__ uint32_t own_queries() const {
    return shared_address(s_.queries[slot_]) + warpgroup_ * 64 * kRowBytes;
  }

  template <bool kEdge>
  __device__ __forceinline__ void multiply_keys() {
    const uint64_t q = swizzled_descriptor(own_queries(), 16, 1024);
    const uint64_t k = swizzled_descriptor(shared_address(s_.keys[keys_.index]), 16, 1024);
#pragma unroll
    for (int step = 0; step < C::kDim / 16; ++step) {
      const int half = step / 4, within = step % 4 * 32;
      wgmma<kKeysPerBlock, typename C::Scalar>(
          scores_,
          advanced(q, half * C::kRows * kRowBytes + within),
          advanced(k, half * kKeysPerBlock * kRowBytes + within),
          step > 0);
    }
    if constexpr (C::kGated && !kEdge) {
      // {1, 1, 1, 0 ...} for every query; from depth 8 on zero, where the right operand repeats
      // itself.
      constexpr uint32_t kOne = 0x3F80, kTwoOnes = 0x3F803F80;  // bf16
      const uint32_t word = thread_ % 4 == 0 ? kTwoOnes : thread_ % 4 == 1 ? kOne : 0;
      const uint32_t ones[4] = {word, word, 0, 0};
      wgmma_registers<kKeysPerBlock, __nv_bfloat16, Contiguous::kDepth>(
          scores_, ones, plain_descriptor(shared_address(s_.bias[keys_.index].keys), 0, 128), 1);
    }
  }

  __device__ __forceinline__ void multiply_values() {
    const uint64_t v = swizzled_descriptor(
        shared_address(s_.values[values_.index]), kKeysPerBlock * kRowBytes, 1024);
#pragma unroll
    for (int step = 0; step < kKeysPerBlock / 16; ++step) {
      wgmma_registers<C::kDim, typename C::Scalar, Contiguous::kRows>(
          out_, weights_ + 4 * step, advanced(v, step * 16 * kRowBytes), 1);
    }
  }

  // ---- softmax ----

  // c_i - c_j in the unit of the scores.
  __device__ __forceinline__ void add_exact_bias(int n) {
    if constexpr (C::kGated) {
      const Problem& problem = p_.task.problem;
      const int64_t head = int64_t{b_} * problem.H + h_;
      const double inverse = 1 / static_cast<double>(problem.scale);
      double own[2];
      for (int r = 0; r < 2; ++r) {
        own[r] = problem.query_sums[head * problem.Tq + min(row(r), problem.Tq - 1)];
      }
      const double* sums = problem.key_sums + head * problem.Tk;
#pragma unroll
      for (int j = 0; j < kKeysPerBlock / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = n * kKeysPerBlock + 8 * j + thread_ % 4 * 2 + e;
          const double sum = sums[min(key, problem.Tk - 1)];
          scores_[4 * j + e] += static_cast<float>((own[0] - sum) * inverse);
          scores_[4 * j + 2 + e] += static_cast<float>((own[1] - sum) * inverse);
        }
      }
    }
  }

  // Scores of keys that a row must not see.
  __device__ __forceinline__ void hide(int n) {
    const int base = n * kKeysPerBlock + thread_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < kKeysPerBlock / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!visible_[e / 2].holds(base + 8 * j + e % 2)) scores_[4 * j + e] = -INFINITY;
      }
    }
  }

  __device__ __forceinline__ void row_maxima(float (&top)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float even = scores_[2 * r], odd = scores_[2 * r + 1];
#pragma unroll
      for (int j = 1; j < kKeysPerBlock / 8; ++j) {
        even = fmaxf(even, scores_[4 * j + 2 * r]);
        odd = fmaxf(odd, scores_[4 * j + 2 * r + 1]);
      }
      top[r] = fmaxf(even, odd);
    }
  }

  // Whether a score lies so far above its row's reference that the reference must be raised. Scores
  // below 0 count as 0: then the bits of a float order as integers do, of which one instruction
  // compares three. A row whose scores are all that low is told too often, never too seldom.
  __device__ __forceinline__ bool exceeds_reference(const float (&shift)[2]) const {
    const auto bits = [&](int i) { return __float_as_int(scores_[i]); };
    bool exceeds = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int even = 0, odd = 0;
#pragma unroll
      for (int j = 0; j < kKeysPerBlock / 8; j += 2) {
        even = __vimax3_s32(even, bits(4 * j + 2 * r), bits(4 * j + 2 * r + 1));
        odd = __vimax3_s32(odd, bits(4 * j + 2 * r + 4), bits(4 * j + 2 * r + 5));
      }
      const float top = __int_as_float(max(even, odd));
      exceeds |= fmaf(top, scale2_, shift[r] - reference_[r]) > kLargestExcess;
    }
    return exceeds;
  }

  // References become the exact maxima so far; what was summed is brought to them.
  __device__ __forceinline__ void raise_references(const float (&shift)[2]) {
    float top[2], keep[2];
    row_maxima(top);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0U, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0U, top[r], 2));
      const float raised = fmaxf(reference_[r], fmaf(top[r], scale2_, shift[r]));
      keep[r] = exp2_fast(reference_[r] - raised);
      reference_[r] = raised;
      total_[r] *= keep[r];
    }
#pragma unroll
    for (int i = 0; i < C::kDim / 2; ++i) out_[i] *= keep[i / 2 % 2];
  }

  // Weights of a block as the left operand of the next product; the first ones start the sums.
  template <bool kFirst>
  __device__ __forceinline__ void weigh(const float (&shift)[2]) {
    const float minus[2] = {shift[0] - reference_[0], shift[1] - reference_[1]};
    float sums[4] = {};
#pragma unroll
    for (int j = 0; j < kKeysPerBlock / 8; ++j) {
      float w[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        w[e] = exp2_fast(fmaf(scores_[4 * j + e], scale2_, minus[e / 2]));
        sums[e] += w[e];
      }
      weights_[2 * j] = packed(w[0], w[1], typename C::Scalar());
      weights_[2 * j + 1] = packed(w[2], w[3], typename C::Scalar());
    }
    total_[0] = (kFirst ? 0 : total_[0]) + (sums[0] + sums[1]);
    total_[1] = (kFirst ? 0 : total_[1]) + (sums[2] + sums[3]);
  }

  // ---- results ----

  __device__ __forceinline__ void finish() {
    const Problem& problem = p_.task.problem;
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total_[r] += __shfl_xor_sync(~0U, total_[r], 1);
      total_[r] += __shfl_xor_sync(~0U, total_[r], 2);
      inverse[r] = total_[r] > 0 ? 1 / total_[r] : 0;
      if (thread_ % 4 == 0 && row(r) < problem.Tq) {
        const int64_t head = int64_t{b_} * problem.H + h_;
        p_.task.lse[head * problem.Tq + row(r)] = log_sum_exp(r);
      }
    }
    if constexpr (C::kWithValues) {
      if (p_.task.out.element == Element::kFloat) {
        store_wide(inverse);
      } else {
        store_tiles(inverse);
      }
    }
    sync_threads(8 + warpgroup_, kWarpgroup);
    if (thread_ == 0) arrive(shared_address(&s_.query_empty[slot_]));
  }

  __device__ __forceinline__ float log_sum_exp(int r) const {
    if (!(total_[r] > 0)) return -INFINITY;
    return static_cast<float>(kLn2 * (reference_[r] + log2f(total_[r])));
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
        store_tile(p_.out, tile + half * C::kRows * kRowBytes, {half * 64, first_row_, h_, b_});
      }
    }
    commit_stores();
    wait_stores_read();
  }

  // f32, when several key parts will be combined.
  __device__ __forceinline__ void store_wide(const float (&inverse)[2]) {
    const Problem& problem = p_.task.problem;
    const Operand& to = p_.task.out;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row(r) >= problem.Tq) continue;
      float* out =
          static_cast<float*>(to.data) + b_ * to.batch + int64_t{row(r)} * to.time + h_ * to.head;
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
  int slot_ = 0, b_ = 0, h_ = 0, first_row_ = 0;
  Stage<kStages> keys_, values_;
  KeyRange visible_[2];
  BlockRange own_;                     // blocks that this warpgroup reads
  int full_begin_ = 0, full_end_ = 0;  // blocks that every row sees whole
  // Sums in powers of two: of the key before this warpgroup's last block, as two f32, and of each
  // row relative to it. Both differences to a block further back are decays: nothing cancels.
  float base_high_ = 0, base_low_ = 0;
  float row_decay_[2];
  float scores_[kKeysPerBlock / 2];
  uint32_t weights_[kKeysPerBlock / 4];
  float out_[C::kDim / 2];
  float reference_[2], total_[2];
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) forward_kernel(const __grid_constant__ Params p) {
  extern __shared__ char raw[];
  auto& s = aligned_shared<Shared<C>>(raw);
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (threadIdx.x == 0) prepare_shared(s);
  __syncthreads();
  if (warpgroup == 0) {
    shrink_registers<C::kProducerRegisters>();
    if (threadIdx.x == 0) Producer<C>(p, s).run();
  } else {
    grow_registers<C::kConsumerRegisters>();
    Consumer<C>(p, s, warpgroup - 1).run();
  }
}

// Where the arrays of a call lie in its scratch.
struct Layout {
  int64_t ranges = 0, order = 0, next_task = 0, total = 0;

  explicit Layout(const Problem& p) {
    const auto padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    const int64_t heads = int64_t{p.B} * p.H, tasks = heads * div_up(p.Tq, 128);
    ranges = p.key_sums ? padded(heads * div_up(p.Tk, kKeysPerBlock) * sizeof(BiasRecord)) : 0;
    order = ranges + padded(tasks * sizeof(BlockRange));
    next_task = order + padded(tasks * sizeof(int));
    total = next_task + 256;
  }
};

template <class C>
void launch(const ForwardTask& task, char* scratch, int num_processors, cudaStream_t stream) {
  const Problem& problem = task.problem;
  const Layout layout(problem);
  Params p;
  p.q = tensor_map(problem.q, problem.B, problem.Tq, problem.H, problem.D, C::kRows);
  p.k = tensor_map(problem.k, problem.B, problem.Tk, problem.G, problem.D, kKeysPerBlock);
  p.v = tensor_map(problem.v, problem.B, problem.Tk, problem.G, problem.D, kKeysPerBlock);
  if (C::kWithValues && task.out.element != Element::kFloat) {
    p.out = tensor_map(task.out, problem.B, problem.Tq, problem.H, problem.D, 64);
  }
  p.task = task;
  p.plan = {reinterpret_cast<BlockRange*>(scratch + layout.ranges),
            reinterpret_cast<int*>(scratch + layout.order),
            reinterpret_cast<int*>(scratch + layout.next_task)};
  auto* records = reinterpret_cast<BiasRecord*>(scratch);
  p.records = records;
  p.num_query_blocks = div_up(problem.Tq, C::kRows);
  p.num_key_blocks = div_up(problem.Tk, kKeysPerBlock);
  p.num_tasks = problem.B * problem.H * p.num_query_blocks;
  if (C::kGated) make_bias_records(problem, records, stream);
  plan_queries(problem, C::kRows, p.plan, stream);
  constexpr int kBytes = sizeof(Shared<C>) + kAlignment;
  cudaFuncSetAttribute(forward_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const int blocks = min(num_processors, p.num_tasks);
  forward_kernel<C><<<blocks, C::kThreads, kBytes, stream>>>(p);
  REYNARD_CUDA_CHECK_LAUNCH();
}

template <int kDim, class Scalar>
void launch_variant(const ForwardTask& task, char* scratch, int processors, cudaStream_t stream) {
  const bool gated = task.problem.key_sums, values = task.out.data;
  const auto run = gated && values ? launch<Config<kDim, Scalar, true, true>>
                   : values        ? launch<Config<kDim, Scalar, false, true>>
                   : gated         ? launch<Config<kDim, Scalar, true, false>>
                                   : launch<Config<kDim, Scalar, false, false>>;
  run(task, scratch, processors, stream);
}

}  // namespace

bool takes_forward(const ForwardTask& task) {
  const Problem& p = task.problem;
  const auto tileable = [&](const Operand& x) { return is_tileable(x, p.D); };
  const bool out = !task.out.data || task.out.element == Element::kFloat || tileable(task.out);
  return p.D <= 128 && p.Tk > 0 && tileable(p.q) && tileable(p.k) && tileable(p.v) && out;
}

int64_t forward_scratch_bytes(const Problem& problem) {
  return Layout(problem).total;
}

void forward(const ForwardTask& task, void* scratch, int num_processors, cudaStream_t stream) {
  auto* bytes = static_cast<char*>(scratch);
  const bool half = task.problem.q.element == Element::kHalf;
  const auto run = task.problem.D <= 64
                       ? (half ? launch_variant<64, __half> : launch_variant<64, __nv_bfloat16>)
                       : (half ? launch_variant<128, __half> : launch_variant<128, __nv_bfloat16>);
  run(task, bytes, num_processors, stream);
}

}  // namespace reynard::attention::cuda::sm90
