// One block of threads per processor takes key blocks from a list; two warpgroups own 64 keys each
// and walk over tiles of 64 queries. Scores are transposed, S^T = K Q^T, so that P^T and dS^T in
// registers are the left operands of dV += P^T dO and dK += dS^T Q. Per tile one warpgroup, in
// turn, multiplies dQ = dS K from shared memory.
//
// A tile's dQ is the sum of parts of many key blocks. They are added in global memory by the copy
// engine in a fixed order, from the last key block to the first: a counter per tile says whose turn
// it is. Key blocks are taken in that order too, so whoever is waited for already runs.
//
// Biases, lse and delta are added by the matrix unit (plan.h): P = exp2(scale S' + shift) with one
// number per tile, dS = P dP'.

#include "reynard/attention/cuda/sm90/backward.h"

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
constexpr int kConsumers = 2;  // warpgroups, each with half of the keys
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kOwnKeys = kKeysPerBlock / kConsumers;
constexpr int kConsumerRegisters = 240, kProducerRegisters = 24;
constexpr int kPartFloats = kQueriesPerTile * 64;  // of dQ on its way: 64 dimensions of a tile
// (batch, key/value head) pairs whose key blocks are in flight together.
constexpr int kPairsPerSection = 8;

// kDim: head dimension rounded up to 64 or 128.
template <int kDim_, class Scalar_>
struct Config {
  static constexpr int kDim = kDim_;
  using Scalar = Scalar_;
  static constexpr int kHalves = kDim / 64;
  static constexpr int kStages = kDim == 64 ? 3 : 2;  // as many as fit
  static constexpr int kKeyBytes = kKeysPerBlock * kDim * 2;
  static constexpr int kQueryBytes = kQueriesPerTile * kDim * 2;
};

// What the producer says of a stage: a tile of queries, and where in its task it stands.
struct Step {
  int b, h, m, n;
  int turn;                  // of this key block among those that add to the tile's dQ
  int full_begin, full_end;  // keys that every query sees
  bool has_tile, first_of_head, last_of_head, first_of_task, last_of_task, stop;
};

// A part of dQ on its way to global memory.
struct Delivery {
  int b, h, m, turn;
  bool stop;
};

template <class C>
struct alignas(1024) Shared {
  char keys[C::kKeyBytes], values[C::kKeyBytes];
  char queries[C::kStages][C::kQueryBytes], douts[C::kStages][C::kQueryBytes];
  char dscores[2][kKeysPerBlock * kRowBytes];  // [key][query], of even and odd tiles
  float dq[kConsumers][kPartFloats];
  alignas(128) QueryRecord records[C::kStages];
  float query_sums[2][kConsumers * 4][kQueriesPerTile];  // of dS over the keys of each warp
  double dq_sums[kConsumers][kQueriesPerTile];
  Step steps[C::kStages];
  Delivery deliveries[kConsumers];
  uint64_t keys_full, keys_empty;
  uint64_t stage_full[C::kStages], stage_empty[C::kStages];
  uint64_t dq_full[kConsumers], dq_empty[kConsumers];
};

struct Params {
  CUtensorMap q, k, v, dout;
  BackwardTask task;
  const BiasRecord* biases;
  const QueryRecord* records;
  KeyPlan plan;
  int* turns;      // (B, H, tiles): parts of dQ that were added
  float* dq_sums;  // (B, H, tiles, halves) of parts, unscaled
  int num_tasks, num_tiles, num_key_blocks;
};

template <class C>
__device__ void prepare_shared(Shared<C>& s) {
  init_barrier(shared_address(&s.keys_full), 1);
  init_barrier(shared_address(&s.keys_empty), kConsumers * 4);
  for (int i = 0; i < C::kStages; ++i) {
    init_barrier(shared_address(&s.stage_full[i]), 1);
    init_barrier(shared_address(&s.stage_empty[i]), kConsumers * 4);
  }
  for (int i = 0; i < kConsumers; ++i) {
    init_barrier(shared_address(&s.dq_full[i]), 1);
    init_barrier(shared_address(&s.dq_empty[i]), 1);
  }
  fence_barrier_init();
}

// ---- one thread: takes key blocks, loads tiles ----

template <class C>
class Producer {
 public:
  __device__ Producer(const Params& p, Shared<C>& s) : p_(p), s_(s) {}

  __device__ void run() {
    for (uint32_t parity = 1;; parity ^= 1) {
      const int task = atomicAdd(p_.plan.next_task, 1);
      if (task >= p_.num_tasks) break;
      take(task);
      wait(shared_address(&s_.keys_empty), parity);
      const uint32_t full = shared_address(&s_.keys_full);
      arrive_expecting(full, 2 * C::kKeyBytes);
      for (int half = 0; half < C::kHalves; ++half) {
        const TilePosition at = {half * 64, n_ * kKeysPerBlock, g_, b_};
        const uint32_t offset = half * kKeysPerBlock * kRowBytes;
        load_tile(shared_address(s_.keys) + offset, p_.k, at, full);
        load_tile(shared_address(s_.values) + offset, p_.v, at, full);
      }
      const Problem& problem = p_.task.problem;
      const int group = problem.H / problem.G;
      for (int h = g_ * group; h < (g_ + 1) * group; ++h) {
        walk_head(h, h == g_ * group, h + 1 == (g_ + 1) * group);
      }
    }
    push({.stop = true});
  }

 private:
  // Within a section of pairs: the last key blocks of all pairs first.
  __device__ void take(int task) {
    const Problem& problem = p_.task.problem;
    const int section = task / (kPairsPerSection * p_.num_key_blocks);
    const int rest = task % (kPairsPerSection * p_.num_key_blocks);
    const int pairs = min(kPairsPerSection, problem.B * problem.G - section * kPairsPerSection);
    const int pair = section * kPairsPerSection + rest % pairs;
    n_ = p_.num_key_blocks - 1 - rest / pairs;
    b_ = pair / problem.G, g_ = pair % problem.G;
  }

  __device__ void walk_head(int h, bool first_head, bool last_head) {
    const int64_t head = int64_t{b_} * p_.task.problem.H + h;
    const TileRange tiles = p_.plan.tiles[head * p_.num_key_blocks + n_];
    const TileKeys* keys = p_.plan.keys + head * p_.num_tiles;
    Step step = {.b = b_, .h = h, .n = n_, .first_of_head = true, .first_of_task = first_head};
    if (tiles.last < 0) {
      step.last_of_head = true, step.last_of_task = last_head;
      push(step);
    }
    for (int m = tiles.first; m <= tiles.last; ++m) {
      const auto [blocks, full_begin, full_end] = keys[m];
      if (n_ < blocks.first || n_ > blocks.last) continue;
      step.m = m, step.turn = blocks.last - n_, step.has_tile = true;
      step.full_begin = full_begin, step.full_end = full_end;
      step.last_of_head = m == tiles.last, step.last_of_task = step.last_of_head && last_head;
      push(step);
      step.first_of_head = step.first_of_task = false;
    }
  }

  __device__ void push(const Step& step) {
    const uint32_t full = shared_address(&s_.stage_full[stage_.index]);
    wait(shared_address(&s_.stage_empty[stage_.index]), stage_.parity ^ 1);
    s_.steps[stage_.index] = step;
    if (step.has_tile) {
      arrive_expecting(full, 2 * C::kQueryBytes + sizeof(QueryRecord));
      for (int half = 0; half < C::kHalves; ++half) {
        const TilePosition at = {half * 64, step.m * kQueriesPerTile, step.h, step.b};
        const uint32_t offset = half * kQueriesPerTile * kRowBytes;
        load_tile(shared_address(s_.queries[stage_.index]) + offset, p_.q, at, full);
        load_tile(shared_address(s_.douts[stage_.index]) + offset, p_.dout, at, full);
      }
      const int64_t head = int64_t{step.b} * p_.task.problem.H + step.h;
      load_bytes(shared_address(&s_.records[stage_.index]),
                 p_.records + head * p_.num_tiles + step.m,
                 sizeof(QueryRecord),
                 full);
    } else {
      arrive(full);
    }
    stage_.next();
  }

  const Params& p_;
  Shared<C>& s_;
  Stage<C::kStages> stage_;
  int b_ = 0, g_ = 0, n_ = 0;
};

// ---- a warp for each warpgroup: adds parts of dQ to global memory, each in its turn ----

__device__ __forceinline__ int load_acquire(const int* address) {
  int value;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ __forceinline__ void store_release(int* address, int value) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
// f32 values in a row; a multiple of 16 bytes.
__device__ __forceinline__ void add_floats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void store_floats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(from),
               "r"(bytes)
               : "memory");
}

// Announces a part whose addition was queued before, when it is done. While the next part waits for
// its own turn nothing may be held back: others may wait for this one.
struct Announcement {
  int* turn = nullptr;
  int value = 0;

  // kPending: additions queued since.
  template <int kPending>
  __device__ __forceinline__ void publish() {
    if (!turn) return;
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
    store_release(turn, value);
    turn = nullptr;
  }
};

__device__ __forceinline__ void add_query_sums(const Params& p,
                                               const double* sums,
                                               const Delivery& part,
                                               int lane) {
  const Problem& problem = p.task.problem;
  const int64_t head = int64_t{part.b} * problem.H + part.h;
#pragma unroll
  for (int i = lane; i < kQueriesPerTile; i += 32) {
    const int query = part.m * kQueriesPerTile + i;
    if (query < problem.Tq) atomicAdd(p.task.dquery_sums + head * problem.Tq + query, sums[i]);
  }
}

// The parts of one warpgroup.
template <class C>
__device__ void deliver(const Params& p, Shared<C>& s, int from) {
  const Problem& problem = p.task.problem;
  const int lane = threadIdx.x % 32;
  const uint32_t full = shared_address(&s.dq_full[from]);
  Announcement announcement;  // of lane 0
  for (uint32_t parity = 0;;) {
    for (int half = 0; half < C::kHalves; ++half, parity ^= 1) {
      if (lane == 0 && !is_over(full, parity)) announcement.publish<0>();
      wait(full, parity);
      const Delivery part = s.deliveries[from];
      if (part.stop) {
        if (lane == 0) announcement.publish<0>();
        return;
      }
      const int64_t tile = (int64_t{part.b} * problem.H + part.h) * p.num_tiles + part.m;
      const bool last = half + 1 == C::kHalves;
      if (lane == 0) {
        if (half == 0 && load_acquire(p.turns + tile) != part.turn) {
          announcement.publish<0>();
          while (load_acquire(p.turns + tile) != part.turn) {
          }
        }
        float* sums = p.dq_sums + (tile * C::kHalves + half) * kPartFloats;
        const uint32_t own = shared_address(s.dq[from]);
        if (part.turn == 0) {
          store_floats(sums, own, kPartFloats * 4);
        } else {
          add_floats(sums, own, kPartFloats * 4);
        }
        commit_stores();
        announcement.publish<1>();
      }
      __syncwarp();
      if (last && p.task.dquery_sums) add_query_sums(p, s.dq_sums[from], part, lane);
      __syncwarp();
      if (lane == 0) {
        wait_stores_read();
        arrive(shared_address(&s.dq_empty[from]));
        if (last) announcement = {p.turns + tile, part.turn + 1};
      }
    }
  }
}

// ---- a warpgroup: 64 keys ----

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
      const bool has_tile = step.has_tile, last_of_head = step.last_of_head;
      const bool last_of_task = step.last_of_task, first_of_task = step.first_of_task;
      if (step.first_of_head) start_head();
      if (first_of_task) {
        wait(shared_address(&s_.keys_full), keys_parity);
        keys_parity ^= 1;
#pragma unroll
        for (int i = 0; i < C::kDim / 2; ++i) dk_[i] = dv_[i] = 0;
      }
      if (has_tile) {
        differentiate_tile();
      } else {
        release_stage();
      }
      if (last_of_head) finish_head();
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
    last_high_ = last_low_ = 0;
    if (p_.biases) {
      const int64_t head = int64_t{b_} * p_.task.problem.H + h_;
      const BiasRecord& bias = p_.biases[head * p_.num_key_blocks + n_];
      last_high_ = bias.last_high, last_low_ = bias.last_low;
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
    key_sums_[0] = key_sums_[1] = 0;
  }

  __device__ __forceinline__ void release_stage() {
    __syncwarp();  // all lanes have read the step
    if (thread_ % 32 == 0) arrive(shared_address(&s_.stage_empty[stage_.index]));
    stage_.next();
  }

  // ---- one tile ----

  __device__ __forceinline__ void differentiate_tile() {
    const int parity = count_ % 2;
    const bool adds_dq = count_ % kConsumers == warpgroup_;
    ++count_;
    wgmma_fence();
    multiply_scores();
    wgmma_commit();
    multiply_dweights();
    wgmma_commit();
    const QueryRecord& record = s_.records[stage_.index];
    const float shift = (record.first_high - last_high_) + (record.first_low - last_low_);
    wgmma_wait<1>();
    pin(scores_);
    if (is_edge()) hide();
    weigh(shift);
    wgmma_wait<0>();
    pin(dweights_);
    differentiate_weights();
    sum_over_keys(parity);
    store_dscores(parity);
    wgmma_fence();
    multiply_gradients();
    wgmma_commit();
    if (adds_dq) {
      sync_threads(1 + parity, kConsumers * kWarpgroup);
      for (int half = 0; half < C::kHalves; ++half) {
        wgmma_fence();
        multiply_dq(parity, half);
        wgmma_commit();
        wgmma_wait<0>();
        pin(dweights_);
        if (half == 0) release_stage_of_gradients();
        send_dq(half, parity);
      }
    } else {
      arrive_threads(1 + parity, kConsumers * kWarpgroup);
      wgmma_wait<0>();
      release_stage_of_gradients();
    }
  }

  __device__ __forceinline__ void release_stage_of_gradients() {
    pin(dk_);
    pin(dv_);
    release_stage();
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
                                     advanced(b, half * kQueriesPerTile * kRowBytes + within),
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

  __device__ __forceinline__ void multiply_scores() {
    multiply_rows(s_.keys, s_.queries[stage_.index], scores_);
    add_split_numbers(key_bias_, s_.records[stage_.index].logits, scores_);
  }
  __device__ __forceinline__ void multiply_dweights() {
    constexpr uint32_t kOne = 0x3F80, kTwoOnes = 0x3F803F80;
    const uint32_t word = thread_ % 4 == 0 ? kTwoOnes : thread_ % 4 == 1 ? kOne : 0;
    const uint32_t ones[4] = {word, word, 0, 0};
    multiply_rows(s_.values, s_.douts[stage_.index], dweights_);
    add_split_numbers(ones, s_.records[stage_.index].deltas, dweights_);
  }

  __device__ __forceinline__ bool is_edge() const {
    const Step& step = s_.steps[stage_.index];
    const int begin = n_ * kKeysPerBlock + warpgroup_ * kOwnKeys;
    return begin < step.full_begin || begin + kOwnKeys > step.full_end;
  }

  __device__ __forceinline__ void hide() {
    const Problem& problem = p_.task.problem;
#pragma unroll
    for (int j = 0; j < kQueriesPerTile / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int query = m_ * kQueriesPerTile + 8 * j + thread_ % 4 * 2 + e;
        KeyRange visible;
        if (query < problem.Tq) visible = keys_of_query(problem, b_, h_, query);
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
    key_sums_[0] += sums[0];
    key_sums_[1] += sums[1];
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
  __device__ __forceinline__ void sum_over_keys(int parity) {
    float sums[kQueriesPerTile / 4];
#pragma unroll
    for (int i = 0; i < kQueriesPerTile / 4; ++i) {
      sums[i] = dweights_[i / 2 * 4 + i % 2] + dweights_[i / 2 * 4 + i % 2 + 2];
    }
    const int lane = thread_ % 32;
    exchange_halves<8>(sums, lane);
    exchange_halves<4>(sums, lane);
    exchange_halves<2>(sums, lane);
    float* to = s_.query_sums[parity][warpgroup_ * 4 + thread_ / 32];
    reinterpret_cast<float2*>(to)[lane / 4 * 4 + lane % 4] = {sums[0], sums[1]};
  }

  __device__ __forceinline__ void store_dscores(int parity) {
    const int row = warpgroup_ * kOwnKeys + thread_ / 32 * 16 + thread_ % 32 / 4;
    const uint32_t base = shared_address(s_.dscores[parity]) + row * kRowBytes + thread_ % 4 * 4;
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

  // dV += P^T dO and dK += dS^T Q
  __device__ __forceinline__ void multiply_gradients() {
    constexpr int kTileBytes = kQueriesPerTile * kRowBytes;
    const uint64_t dout =
        swizzled_descriptor(shared_address(s_.douts[stage_.index]), kTileBytes, 1024);
    const uint64_t q =
        swizzled_descriptor(shared_address(s_.queries[stage_.index]), kTileBytes, 1024);
#pragma unroll
    for (int step = 0; step < kQueriesPerTile / 16; ++step) {
      wgmma_registers<C::kDim, Scalar, Contiguous::kRows>(
          dv_, weights_ + 4 * step, advanced(dout, step * 16 * kRowBytes), 1);
    }
#pragma unroll
    for (int step = 0; step < kQueriesPerTile / 16; ++step) {
      wgmma_registers<C::kDim, Scalar, Contiguous::kRows>(
          dk_, dscores_ + 4 * step, advanced(q, step * 16 * kRowBytes), 1);
    }
  }

  // 64 dimensions of dQ = dS K over all 128 keys, into dweights_.
  __device__ __forceinline__ void multiply_dq(int parity, int half) {
    const uint64_t ds = swizzled_descriptor(shared_address(s_.dscores[parity]), 16, 1024);
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

  // A part is [register quad][thread][4]: whoever reads it back knows what it holds.
  __device__ __forceinline__ void send_dq(int half, int parity) {
    wait_for_delivery();
    auto* part = reinterpret_cast<float4*>(s_.dq[warpgroup_]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      part[j * kWarpgroup + thread_] = {
          dweights_[4 * j], dweights_[4 * j + 1], dweights_[4 * j + 2], dweights_[4 * j + 3]};
    }
    if (half == 0 && thread_ < kQueriesPerTile) {
      double sum = 0;
      for (int warp = 0; warp < kConsumers * 4; ++warp) sum += s_.query_sums[parity][warp][thread_];
      s_.dq_sums[warpgroup_][thread_] = sum;
    }
    fence_for_async();
    sync_threads(3 + warpgroup_, kWarpgroup);
    post({b_, h_, m_, turn_, false});
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

  __device__ __forceinline__ void finish_head() {
    const Problem& problem = p_.task.problem;
    if (!p_.task.dkey_sums) return;
    const int64_t head = int64_t{b_} * problem.H + h_;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      double sum = key_sums_[r];
      sum += __shfl_xor_sync(~0U, sum, 1);
      sum += __shfl_xor_sync(~0U, sum, 2);
      if (thread_ % 4 == 0 && key(r) < problem.Tk) {
        p_.task.dkey_sums[head * problem.Tk + key(r)] = -sum;
      }
    }
  }

  __device__ __forceinline__ void store_rows(const Operand& to,
                                             const float (&sums)[C::kDim / 2],
                                             float factor) const {
    const Problem& problem = p_.task.problem;
    const int g = h_ / (problem.H / problem.G);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (key(r) >= problem.Tk) continue;
      auto* row =
          static_cast<Scalar*>(to.data) + b_ * to.batch + int64_t{key(r)} * to.time + g * to.head;
#pragma unroll
      for (int j = 0; j < C::kDim / 8; ++j) {
        const int d = 8 * j + thread_ % 4 * 2;
        if (d >= problem.D) continue;
        *reinterpret_cast<uint32_t*>(row + d) =
            packed(sums[4 * j + 2 * r] * factor, sums[4 * j + 2 * r + 1] * factor, Scalar());
      }
    }
  }

  __device__ __forceinline__ void finish_task() {
    __syncwarp();
    if (thread_ % 32 == 0) arrive(shared_address(&s_.keys_empty));
    store_rows(p_.task.dk, dk_, p_.task.problem.scale);
    store_rows(p_.task.dv, dv_, 1);
  }

  const Params& p_;
  Shared<C>& s_;
  const int warpgroup_, thread_;
  const float scale2_;
  Stage<C::kStages> stage_;
  int count_ = 0;  // of tiles
  uint32_t delivery_parity_ = 0;
  int b_ = 0, h_ = 0, m_ = 0, n_ = 0, turn_ = 0;
  float last_high_ = 0, last_low_ = 0;
  uint32_t key_bias_[4];
  double key_sums_[2];
  float scores_[kQueriesPerTile / 2], dweights_[kQueriesPerTile / 2];
  uint32_t weights_[kQueriesPerTile / 4], dscores_[kQueriesPerTile / 4];
  float dk_[C::kDim / 2], dv_[C::kDim / 2];
};

template <class C>
__global__ void __launch_bounds__(kThreads, 1) backward_kernel(const __grid_constant__ Params p) {
  extern __shared__ char raw[];
  auto& s = aligned_shared<Shared<C>>(raw);
  const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
  if (threadIdx.x == 0) prepare_shared(s);
  __syncthreads();
  if (warpgroup == 0) {
    shrink_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      Producer<C>(p, s).run();
    } else if (threadIdx.x / 32 >= 1 && threadIdx.x / 32 <= kConsumers) {
      deliver(p, s, threadIdx.x / 32 - 1);
    }
  } else {
    grow_registers<kConsumerRegisters>();
    Consumer<C>(p, s, warpgroup - 1).run();
  }
}

// Eight neighbouring numbers in whole 16-byte accesses.
__device__ void store_eight(float* to, const float* from) {
  for (int i = 0; i < 8; i += 4) {
    *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(from + i);
  }
}
template <class Scalar>
__device__ void store_eight(Scalar* to, const float* from) {
  uint4 pairs;
  pairs.x = packed(from[0], from[1], Scalar());
  pairs.y = packed(from[2], from[3], Scalar());
  pairs.z = packed(from[4], from[5], Scalar());
  pairs.w = packed(from[6], from[7], Scalar());
  *reinterpret_cast<uint4*>(to) = pairs;
}

// dq from the sums of parts: one block of threads per part, in the order that send_dq wrote.
// Through shared memory, so that rows are written whole.
template <class Out>
__global__ void __launch_bounds__(kWarpgroup) dq_kernel(const Params p, int num_halves) {
  constexpr int kColumns = 64, kStride = kColumns + 4;
  __shared__ alignas(16) float rows[kQueriesPerTile * kStride];
  const Problem& problem = p.task.problem;
  const int64_t tile = blockIdx.x / num_halves;
  const int half = blockIdx.x % num_halves, m = tile % p.num_tiles;
  const int64_t head = tile / p.num_tiles, b = head / problem.H, h = head % problem.H;
  const BlockRange blocks = p.plan.keys[tile].blocks;
  const bool seen = blocks.last >= blocks.first;
  const auto* part = reinterpret_cast<const float4*>(p.dq_sums + int64_t{blockIdx.x} * kPartFloats);
  float* own =
      rows + (threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4) * kStride + threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const float4 sums = seen ? part[j * kWarpgroup + threadIdx.x] : float4{};
    *reinterpret_cast<float2*>(own + 8 * j) = {sums.x * problem.scale, sums.y * problem.scale};
    *reinterpret_cast<float2*>(own + 8 * kStride + 8 * j) = {sums.z * problem.scale,
                                                             sums.w * problem.scale};
  }
  __syncthreads();
  const Operand& to = p.task.dq;
  Out* out = static_cast<Out*>(to.data) + b * to.batch + h * to.head + half * kColumns;
  for (int i = threadIdx.x; i < kQueriesPerTile * kColumns / 8; i += kWarpgroup) {
    const int row = i / (kColumns / 8), d = i % (kColumns / 8) * 8;
    const int64_t query = int64_t{m} * kQueriesPerTile + row;
    if (query >= problem.Tq || half * kColumns + d >= problem.D) continue;
    store_eight(out + query * to.time + d, rows + row * kStride + d);
  }
}

// Where the arrays of a call lie in its scratch.
struct Layout {
  int64_t records = 0, keys = 0, tiles = 0, turns = 0, next_task = 0, dq_sums = 0, total = 0;

  explicit Layout(const Problem& p) {
    const auto padded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    const int64_t heads = int64_t{p.B} * p.H, key_blocks = heads * div_up(p.Tk, kKeysPerBlock);
    const int64_t num_tiles = heads * div_up(p.Tq, kQueriesPerTile);
    records = p.key_sums ? padded(key_blocks * sizeof(BiasRecord)) : 0;
    keys = records + padded(num_tiles * sizeof(QueryRecord));
    tiles = keys + padded(num_tiles * sizeof(TileKeys));
    turns = tiles + padded(key_blocks * sizeof(TileRange));
    next_task = turns + padded(num_tiles * sizeof(int));
    dq_sums = next_task + 256;
    total = dq_sums + num_tiles * div_up(p.D, 64) * kPartFloats * sizeof(float);
  }
};

template <class C>
void launch(const BackwardTask& task, char* scratch, int num_processors, cudaStream_t stream) {
  const Problem& problem = task.problem;
  const Layout layout(problem);
  const auto queries = [&](const Operand& x) {
    return tensor_map(x, problem.B, problem.Tq, problem.H, problem.D, kQueriesPerTile);
  };
  const auto keys = [&](const Operand& x) {
    return tensor_map(x, problem.B, problem.Tk, problem.G, problem.D, kKeysPerBlock);
  };
  Params p;
  p.q = queries(problem.q), p.dout = queries(task.dout);
  p.k = keys(problem.k), p.v = keys(problem.v);
  p.task = task;
  auto* biases = reinterpret_cast<BiasRecord*>(scratch);
  auto* records = reinterpret_cast<QueryRecord*>(scratch + layout.records);
  p.biases = problem.key_sums ? biases : nullptr;
  p.records = records;
  p.plan = {reinterpret_cast<TileKeys*>(scratch + layout.keys),
            reinterpret_cast<TileRange*>(scratch + layout.tiles),
            reinterpret_cast<int*>(scratch + layout.next_task)};
  p.turns = reinterpret_cast<int*>(scratch + layout.turns);
  p.dq_sums = reinterpret_cast<float*>(scratch + layout.dq_sums);
  p.num_tiles = div_up(problem.Tq, kQueriesPerTile);
  p.num_key_blocks = div_up(problem.Tk, kKeysPerBlock);
  p.num_tasks = problem.B * problem.G * p.num_key_blocks;
  const int64_t rows = int64_t{problem.B} * problem.H * problem.Tq;
  if (task.dquery_sums) cudaMemsetAsync(task.dquery_sums, 0, rows * sizeof(double), stream);
  cudaMemsetAsync(p.turns, 0, layout.next_task - layout.turns, stream);
  if (problem.key_sums) make_bias_records(problem, biases, stream);
  make_query_records(task, records, stream);
  plan_keys(problem, p.plan, stream);
  constexpr int kBytes = sizeof(Shared<C>) + kAlignment;
  cudaFuncSetAttribute(backward_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const int blocks = min(num_processors, p.num_tasks);
  backward_kernel<C><<<blocks, kThreads, kBytes, stream>>>(p);
  REYNARD_CUDA_CHECK_LAUNCH();
  const unsigned parts = problem.B * problem.H * p.num_tiles * C::kHalves;
  const auto write_dq =
      task.dq.element == Element::kFloat ? &dq_kernel<float> : &dq_kernel<typename C::Scalar>;
  write_dq<<<parts, kWarpgroup, 0, stream>>>(p, C::kHalves);
  REYNARD_CUDA_CHECK_LAUNCH();
}

}  // namespace

bool takes_backward(const BackwardTask& task) {
  const Problem& p = task.problem;
  const auto tileable = [&](const Operand& x) { return is_tileable(x, p.D); };
  return p.D <= 128 && p.Tk > 0 && tileable(p.q) && tileable(p.k) && tileable(p.v) &&
         tileable(task.dout);
}

int64_t backward_scratch_bytes(const Problem& problem) {
  return Layout(problem).total;
}

void backward(const BackwardTask& task, void* scratch, int num_processors, cudaStream_t stream) {
  const bool half = task.problem.q.element == Element::kHalf;
  const auto run = task.problem.D <= 64
                       ? (half ? launch<Config<64, __half>> : launch<Config<64, __nv_bfloat16>>)
                       : (half ? launch<Config<128, __half>> : launch<Config<128, __nv_bfloat16>>);
  run(task, static_cast<char*>(scratch), num_processors, stream);
}

}  // namespace reynard::attention::cuda::sm90
