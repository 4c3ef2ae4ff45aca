// One block of threads per block of 128 queries of one head; each warp owns 32 of them (16 where
// D > 128). Key blocks go from the diagonal to the past. Keys and values have one buffer each: the
// values of a block arrive while its scores are computed, the next keys while values are summed.
//
// A key's bias is added in registers from pairs of f32 (records.cuh). Where keys reach beyond the
// block's first query, or not all are seen, each pair of positions is subtracted by itself; else
// the sum is split at that query, and both parts are decays, so nothing cancels. What a row
// subtracts is raised seldom: at D = 256 when a score exceeds it by 2^8, else when the weights of a
// lane sum up to more than that. These are then made again; no maximum is looked for otherwise.

#include "reynard/attention/cuda/sm80/forward.h"

#include "reynard/attention/cuda/logarithms.cuh"
#include "reynard/attention/cuda/sm80/records.cuh"
#include "reynard/attention/cuda/sm80/tile.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <cmath>

namespace reynard::attention::cuda::sm80 {

namespace {

// kDim: head dimension rounded up to 64, 128 or 256.
template <int kDim_, class Scalar_>
struct Config {
  static constexpr int kDim = kDim_;
  using Scalar = Scalar_;
  // Two row tiles share every fragment of keys and values; 32 x 256 sums would not fit.
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1;
  static constexpr int kWarps = kDim <= 128 ? 4 : 8;
  static constexpr int kThreads = 32 * kWarps, kRows = 16 * kRowTiles * kWarps;
  // What registers hold of scores beside 32 x 128 sums; at D = 256 128 queries and 32 keys and
  // values fill the 99 KB of the smallest supported GPU.
  static constexpr int kKeys = kDim == 64 ? 64 : 32;
  static constexpr int kColumnTiles = kKeys / 8;
  // One block a processor has too few warps to hide a vote that waits for weights.
  static constexpr bool kLooksForMaxima = kDim == 256;
  static constexpr int kBlocksPerProcessor = kDim == 256 ? 1 : 2;
  // The queries' fragments stay in registers where there is room.
  static constexpr bool kKeepsQueries = kDim == 64;
  static constexpr int kOwn = 2 * kRowTiles;  // rows of a thread
};

template <class C>
struct alignas(128) Shared {
  char queries[C::kRows * C::kDim * 2];
  char keys[C::kKeys * C::kDim * 2];
  char values[C::kKeys * C::kDim * 2];
  KeyRecord records[2][C::kKeys];  // of even and odd key blocks
  alignas(16) float decays[C::kKeys];
};

// What a warp knows of its queries and sums over their keys.
template <class C>
class Rows {
  using Scalar = typename C::Scalar;

 public:
  __device__ __forceinline__ Rows(const ForwardTask& task, const QueryRecord* queries, int first)
      : p_(task.problem),
        queries_(queries),
        lane_(threadIdx.x % 32),
        first_(first + threadIdx.x / 32 * (16 * C::kRowTiles)),
        scale2_(static_cast<float>(task.problem.scale * kLog2E)) {
    constexpr int kLast = 16 * C::kRowTiles - 1;
    if (first_ < p_.Tq) {
      const int last = min(first_ + kLast, p_.Tq - 1);
      own_ = {queries[first_].begin, end_of(last)};
      if (first_ + kLast < p_.Tq) whole_ = {queries[last].begin, end_of(first)};
    }
    const SplitSum origin = queries[first];
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) {
      shift_[a] = difference(queries[row(a)], origin);
      reference_[a] = kLowest;
      total_[a] = 0;
    }
#pragma unroll
    for (auto& row : out_) {
#pragma unroll
      for (auto& column : row) column[0] = column[1] = column[2] = column[3] = 0;
    }
  }

  __device__ __forceinline__ bool reads(int n) const {
    return own_.begin < (n + 1) * C::kKeys && own_.end > n * C::kKeys;
  }

  __device__ __forceinline__ void keep_queries(uint32_t tile) {
    if constexpr (C::kKeepsQueries) {
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r) {
#pragma unroll
        for (int step = 0; step < C::kDim / 16; ++step) load_queries(kept_[r][step], tile, r, step);
      }
    }
  }

  __device__ __forceinline__ void multiply_keys(uint32_t queries, uint32_t keys) {
    const auto left = [&](uint32_t(&a)[4], int r, int step) {
      if constexpr (C::kKeepsQueries) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = kept_[r][step][i];
      } else {
        load_queries(a, queries, r, step);
      }
    };
    multiply_rows<Scalar, C::kDim>(left, keys, scores_);
  }

  // Scores of key block n become weights.
  //   decays  c_first - c_j, first the block's first query
  __device__ __forceinline__ void weigh(const float* decays, const KeyRecord* records, int n) {
    float shift[C::kOwn] = {};
    if (n * C::kKeys >= whole_.begin && (n + 1) * C::kKeys <= whole_.end) {
      add_decays(decays);
#pragma unroll
      for (int a = 0; a < C::kOwn; ++a) shift[a] = shift_[a];
    } else {
      add_edge_bias(records, n * C::kKeys);
    }
    float sums[C::kOwn];
    if constexpr (C::kLooksForMaxima) {
      if (__any_sync(~0U, exceeds_references(shift))) raise_references(shift);
      make_weights(shift, sums);
    } else {
      // Raised once: scores that are rounded by more than the slack stay above their reference.
      for (float largest = kLargestSum;; largest = INFINITY) {
        make_weights(shift, sums);
        if (!__any_sync(~0U, any_exceeds(sums, largest))) break;
        raise_references(shift);
      }
    }
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) total_[a] += sums[a];
  }

  __device__ __forceinline__ void add_values(uint32_t values) {
    add_weighted_rows<Scalar, C::kDim>(weights_, values, out_);
  }

  __device__ __forceinline__ void finish(const ForwardTask& task, int b, int h) {
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) {
      const float total = over_row(total_[a], [](float x, float y) { return x + y; });
      if (row(a) >= p_.Tq) continue;
      if (lane_ % 4 == 0) {
        // NaN stays.
        const double lse = total == 0 ? -INFINITY : kLn2 * (reference_[a] + log2f(total));
        task.lse[(int64_t{b} * p_.H + h) * p_.Tq + row(a)] = static_cast<float>(lse);
      }
      store_row(task.out, b, h, a, total == 0 ? 0 : 1 / total);
    }
  }

 private:
  __device__ __forceinline__ int row(int a) const {
    return first_ + a / 2 * 16 + lane_ / 4 + a % 2 * 8;
  }
  __device__ __forceinline__ int end_of(int query) const {
    return p_.causal ? query + p_.Tk - p_.Tq + 1 : p_.Tk;
  }

  __device__ __forceinline__ void load_queries(uint32_t (&a)[4],
                                               uint32_t tile,
                                               int r,
                                               int step) const {
    const LaneAddress<C::kDim> address(lane_, false);
    const int own_row = threadIdx.x / 32 * (16 * C::kRowTiles) + r * 16;
    load_matrices(a, address.at(tile + own_row * C::kDim * 2, 0, step));
  }

  __device__ __forceinline__ void add_decays(const float* decays) {
#pragma unroll
    for (int c = 0; c < C::kColumnTiles; ++c) {
      const float2 pair = *reinterpret_cast<const float2*>(decays + c * 8 + lane_ % 4 * 2);
#pragma unroll
      for (int a = 0; a < C::kOwn; ++a) {
        float* score = scores_[a / 2][c] + a % 2 * 2;
        score[0] = fmaf(score[0], scale2_, pair.x);
        score[1] = fmaf(score[1], scale2_, pair.y);
      }
    }
  }

  __device__ __forceinline__ void add_edge_bias(const KeyRecord* records, int base) {
    QueryRecord query[C::kOwn];
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) query[a] = queries_[row(a)];
#pragma unroll
    for (int c = 0; c < C::kColumnTiles; ++c) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int in_block = c * 8 + lane_ % 4 * 2 + e;
        const KeyRecord key = records[in_block];
#pragma unroll
        for (int a = 0; a < C::kOwn; ++a) {
          float& score = scores_[a / 2][c][a % 2 * 2 + e];
          const KeyRange visible = {query[a].begin, end_of(row(a))};
          score = visible.holds(base + in_block) ? fmaf(score, scale2_, difference(query[a], key))
                                                 : -INFINITY;
        }
      }
    }
  }

  // The greatest of a lane's scores of row a.
  __device__ __forceinline__ float top_of(int a) const {
    float even = -INFINITY, odd = -INFINITY;
#pragma unroll
    for (int c = 0; c < C::kColumnTiles; ++c) {
      even = fmaxf(even, scores_[a / 2][c][a % 2 * 2]);
      odd = fmaxf(odd, scores_[a / 2][c][a % 2 * 2 + 1]);
    }
    return fmaxf(even, odd);
  }

  __device__ __forceinline__ bool exceeds_references(const float (&shift)[C::kOwn]) const {
    bool exceeds = false;
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) {
      exceeds |= top_of(a) + shift[a] - reference_[a] > kLargestExcess;
    }
    return exceeds;
  }

  // Weights of the block's scores and a lane's sums of them.
  __device__ __forceinline__ void make_weights(const float (&shift)[C::kOwn],
                                               float (&sums)[C::kOwn]) {
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) {
      const float minus = shift[a] - reference_[a];
      float even = 0, odd = 0;
#pragma unroll
      for (int c = 0; c < C::kColumnTiles; ++c) {
        const float* pair = scores_[a / 2][c] + a % 2 * 2;
        const float w0 = exp2_approx(pair[0] + minus), w1 = exp2_approx(pair[1] + minus);
        even += w0, odd += w1;
        weights_[a / 2][c][a % 2] = packed(w0, w1, Scalar());
      }
      sums[a] = even + odd;
    }
  }

  // Sums that are not numbers do not.
  static __device__ __forceinline__ bool any_exceeds(const float (&sums)[C::kOwn], float largest) {
    bool exceeds = false;
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) exceeds |= sums[a] > largest;
    return exceeds;
  }

  // References become the maxima so far; what was summed is brought to them.
  __device__ __forceinline__ void raise_references(const float (&shift)[C::kOwn]) {
#pragma unroll
    for (int a = 0; a < C::kOwn; ++a) {
      const float highest = over_row(top_of(a), [](float x, float y) { return fmaxf(x, y); });
      const float raised = fmaxf(reference_[a], highest + shift[a]);
      const float keep = exp2_approx(reference_[a] - raised);
      reference_[a] = raised;
      total_[a] *= keep;
#pragma unroll
      for (int d = 0; d < C::kDim / 8; ++d) {
        out_[a / 2][d][a % 2 * 2] *= keep;
        out_[a / 2][d][a % 2 * 2 + 1] *= keep;
      }
    }
  }

  __device__ __forceinline__ void store_row(
      const Operand& to, int b, int h, int a, float factor) const {
    const int64_t start = b * to.batch + int64_t{row(a)} * to.time + h * to.head;
#pragma unroll
    for (int c = 0; c < C::kDim / 8; ++c) {
      const int d = c * 8 + lane_ % 4 * 2;
      if (d >= p_.D) continue;
      const float x = out_[a / 2][c][a % 2 * 2] * factor;
      const float y = out_[a / 2][c][a % 2 * 2 + 1] * factor;
      if (to.element == Element::kFloat) {
        *reinterpret_cast<float2*>(static_cast<float*>(to.data) + start + d) = {x, y};
      } else {
        *reinterpret_cast<uint32_t*>(static_cast<Scalar*>(to.data) + start + d) =
            packed(x, y, Scalar());
      }
    }
  }

  const Problem& p_;
  const QueryRecord* queries_;
  const int lane_, first_;
  const float scale2_;
  KeyRange own_;          // keys that some of the warp's queries see
  KeyRange whole_;        // keys before the block's queries that all of the warp's see
  float shift_[C::kOwn];  // c_i - c_first
  float reference_[C::kOwn], total_[C::kOwn];
  float scores_[C::kRowTiles][C::kColumnTiles][4];
  uint32_t weights_[C::kRowTiles][C::kColumnTiles][2];
  uint32_t kept_[C::kKeepsQueries ? C::kRowTiles : 1][C::kKeepsQueries ? C::kDim / 16 : 1][4];
  float out_[C::kRowTiles][C::kDim / 8][4];
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerProcessor)
    forward_kernel(const ForwardTask task, const Records records) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<Shared<C>*>(raw);
  const Problem& p = task.problem;
  const int num_blocks = div_up(p.Tq, C::kRows);
  const int head = blockIdx.x / num_blocks, m = num_blocks - 1 - blockIdx.x % num_blocks;
  const int b = head / p.H, h = head % p.H, g = h / (p.H / p.G);
  const int first = m * C::kRows, last = min(first + C::kRows, p.Tq);
  const KeyRange keys = keys_of_queries(p, b, h, first, last);
  const KeyRecord* key_records = records.keys + head * padded(p.Tk);
  const uint32_t query_tile = shared_address(s.queries), key_tile = shared_address(s.keys);
  const uint32_t value_tile = shared_address(s.values);

  const auto load_keys = [&](int n) {
    load_rows<C::kDim, C::kKeys, C::kThreads>(
        key_tile, rows_of(p.k, b, g), p.D, n * C::kKeys, keys);
    load_records<C::kKeys, C::kThreads>(shared_address(s.records[n & 1]),
                                        key_records + n * C::kKeys);
    commit_copies();
  };
  const int first_block = keys.begin / C::kKeys;
  const int last_block = keys.empty() ? first_block - 1 : (keys.end - 1) / C::kKeys;
  load_rows<C::kDim, C::kRows, C::kThreads>(
      query_tile, rows_of(p.q, b, h), p.D, first, {first, last});
  commit_copies();
  if (last_block >= first_block) load_keys(last_block);
  const QueryRecord* queries = records.queries + head * padded(p.Tq);
  const SplitSum origin = queries[first];
  Rows<C> rows(task, queries, first);
  wait_copies<0>();
  __syncthreads();
  rows.keep_queries(query_tile);

  for (int n = last_block; n >= first_block; --n) {
    load_rows<C::kDim, C::kKeys, C::kThreads>(
        value_tile, rows_of(p.v, b, g), p.D, n * C::kKeys, keys);
    commit_copies();
    const bool reads = rows.reads(n);
    if (reads) rows.multiply_keys(query_tile, key_tile);
    if (threadIdx.x < C::kKeys) {
      s.decays[threadIdx.x] = difference(origin, s.records[n & 1][threadIdx.x]);
    }
    wait_copies<0>();
    __syncthreads();  // values and decays are there, the keys have been read
    if (n > first_block) load_keys(n - 1);
    if (reads) {
      rows.weigh(s.decays, s.records[n & 1], n);
      rows.add_values(value_tile);
    }
    wait_copies<0>();
    __syncthreads();
  }
  rows.finish(task, b, h);
}

template <class C>
void launch(const ForwardTask& task, void* scratch, cudaStream_t stream) {
  const Problem& p = task.problem;
  const Records records = records_in(scratch, p);
  make_records(p, nullptr, nullptr, records, stream);
  constexpr int kBytes = sizeof(Shared<C>);
  cudaFuncSetAttribute(forward_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const unsigned blocks = p.B * p.H * div_up(p.Tq, C::kRows);
  forward_kernel<C><<<blocks, C::kThreads, kBytes, stream>>>(task, records);
  REYNARD_CHECK_LAUNCH();
}

template <class Scalar>
void launch_dimension(const ForwardTask& task, void* scratch, cudaStream_t stream) {
  const int D = task.problem.D;
  const auto run = D <= 64    ? launch<Config<64, Scalar>>
                   : D <= 128 ? launch<Config<128, Scalar>>
                              : launch<Config<256, Scalar>>;
  run(task, scratch, stream);
}

}  // namespace

bool takes_forward(const ForwardTask& task) {
  const Problem& p = task.problem;
  return task.out.data && p.D <= 256 && is_tileable(p.q, p.D) && is_tileable(p.k, p.D) &&
         is_tileable(p.v, p.D);
}

int64_t forward_scratch_bytes(const Problem& problem) {
  return records_bytes(problem);
}

void forward(const ForwardTask& task, void* scratch, cudaStream_t stream) {
  if (task.problem.q.element == Element::kHalf) {
    launch_dimension<__half>(task, scratch, stream);
  } else {
    launch_dimension<__nv_bfloat16>(task, scratch, stream);
  }
}

}  // namespace reynard::attention::cuda::sm80
