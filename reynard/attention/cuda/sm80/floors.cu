// One block of threads per block of 128 queries of one head; each warp owns 16 of them. Heads of
// the same rows are neighbours, since they lie side by side in memory. All tiles of a block are
// asked for at once (up to 128 dimensions), and no kernel before prepares anything.

#include "reynard/attention/cuda/sm80/floors.h"

#include "reynard/attention/cuda/sm80/tile.cuh"
#include "reynard/attention/pruning_limits.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <cmath>

namespace reynard::attention::cuda::sm80 {

namespace {

constexpr double kLn2 = 0.69314718055994531;
constexpr float kLowest = -1e30F;  // finite, so that differences of references are
constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kRows = static_cast<int>(kQueryBlock), kKeys = static_cast<int>(kKeyBlock);
constexpr int kRowTiles = 1, kColumnTiles = 4;  // of a warp's scores, half a key block at a time
constexpr int kHalf = 8 * kColumnTiles;
constexpr int kOwn = 2 * kRowTiles;  // rows of a thread
static_assert(kRows == 16 * kRowTiles * kWarps && kKeys == 2 * kHalf && kRows == 2 * kKeys);
static_assert(kThreads >= 3 * kKeys);  // a key's sum each

// kDim: head dimension rounded up to 64, 128 or 256.
template <int kDim_, class Scalar_>
struct FloorConfig {
  static constexpr int kDim = kDim_;
  using Scalar = Scalar_;
  // What a block of queries is near to; 256 dimensions of one fill the smallest GPU's 99 KB.
  static constexpr int kStages = kDim == 256 ? 1 : 3;
  static constexpr int kBlocksPerProcessor = kDim == 64 ? 4 : 2;
};

// A sum of gates in powers of two, 48 bits (records.cuh).
struct alignas(8) GateSum {
  float high, low;
};

__device__ GateSum gate_sum(double sum) {
  const double scaled = sum * kLog2E;
  const float high = static_cast<float>(scaled);
  return {high, static_cast<float>(scaled - high)};
}

template <class C>
struct alignas(128) FloorShared {
  char queries[kRows * C::kDim * 2];
  char keys[C::kStages][kKeys * C::kDim * 2];
  alignas(16) GateSum key_sums[C::kStages][kKeys];
  float squares[3][kWarps];  // largest norm squares that the warps saw: queries, own key blocks
};

// The larger of two values; NaN once there stays.
__device__ float larger_or_nan(float a, float b) {
  return b > a || b != b ? b : a;
}

// The largest sum of squares over the rows of a tile: `kLanes` lanes a row.
template <class C, int kLanes>
__device__ float largest_square(const char* tile) {
  constexpr int kPieces = C::kDim / 8 / kLanes;
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  const int first = static_cast<int>(threadIdx.x) % kLanes * kPieces;
  const auto* pieces = reinterpret_cast<const uint4*>(tile + row * C::kDim * 2);
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < kPieces; ++i) {
    const uint4 bits = pieces[(first + i) ^ (row & 7)];
    typename C::Scalar values[8];
    memcpy(values, &bits, sizeof bits);
#pragma unroll
    for (const auto& x : values) {
      const auto value = static_cast<float>(x);
      sum = fmaf(value, value, sum);
    }
  }
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) {
    sum = larger_or_nan(sum, __shfl_xor_sync(~0U, sum, step));
  }
  return sum;
}

__device__ float norm_of(const float (&squares)[kWarps]) {
  float largest = squares[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) largest = larger_or_nan(largest, squares[w]);
  return sqrtf(largest) * kNormMargin;
}

// A warp's 16 rows.
template <class C>
class FloorRows {
 public:
  // sums: of the rows in powers of e, as read_sums() has read them.
  __device__ __forceinline__
  FloorRows(const Problem& p, int b, int start, int first, const double (&sums)[kOwn])
      : p_(p),
        lane_(threadIdx.x % 32),
        first_(first_row(first)),
        scale2_(static_cast<float>(p.scale * kLog2E)) {
    const int last = first_ + 16 * kRowTiles - 1;
    if (first_ < p.Tq) {
      const KeyRange top = keys_from(p, b, start, first_);
      const KeyRange bottom = keys_from(p, b, start, min(last, p.Tq - 1));
      seen_ = {top.begin, bottom.end};
      if (last < p.Tq) whole_ = {bottom.begin, top.end};
    }
#pragma unroll
    for (int a = 0; a < kOwn; ++a) {
      visible_[a] = row(a) < p.Tq ? keys_from(p, b, start, row(a)) : KeyRange();
      own_[a] = gate_sum(sums[a]);
      reference_[a] = kLowest;
      total_[a] = 0;
    }
  }

  static __device__ __forceinline__ void read_sums(const Problem& p,
                                                   int64_t head,
                                                   int first,
                                                   double (&sums)[kOwn]) {
#pragma unroll
    for (int a = 0; a < kOwn; ++a) {
      const int query = min(first_row(first) + row_in_warp(a), p.Tq - 1);
      sums[a] = p.query_sums ? p.query_sums[head * p.Tq + query] : 0;
    }
  }

  // 32 keys from `base` on.
  __device__ __forceinline__ void add(uint32_t queries,
                                      uint32_t keys,
                                      const GateSum* sums,
                                      int base) {
    if (seen_.begin >= base + kHalf || seen_.end <= base) return;
    float scores[kRowTiles][kColumnTiles][4];
    const auto left = [&](uint32_t(&a)[4], int r, int step) {
      const LaneAddress<C::kDim> address(lane_, false);
      const int in_block = threadIdx.x / 32 * 16 * kRowTiles + r * 16;
      load_matrices(a, address.at(queries + in_block * C::kDim * 2, 0, step));
    };
    multiply_rows<typename C::Scalar, C::kDim>(left, keys, scores);
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      const float4 pair = *reinterpret_cast<const float4*>(sums + c * 8 + lane_ % 4 * 2);
#pragma unroll
      for (int a = 0; a < kOwn; ++a) {
        float* score = scores[a / 2][c] + a % 2 * 2;
        const GateSum& own = own_[a];
        score[0] = fmaf(score[0], scale2_, own.low - pair.y) + (own.high - pair.x);
        score[1] = fmaf(score[1], scale2_, own.low - pair.w) + (own.high - pair.z);
      }
    }
    if (whole_.begin > base || whole_.end < base + kHalf) hide(scores, base);
#pragma unroll
    for (int a = 0; a < kOwn; ++a) add_row(scores[a / 2], a);
  }

  __device__ __forceinline__ void finish(double* floors) {
#pragma unroll
    for (int a = 0; a < kOwn; ++a) {
      const float top = over_row(reference_[a], [](float x, float y) { return fmaxf(x, y); });
      const float own = total_[a] * exp2_fast(reference_[a] - top);
      const float total = over_row(own, [](float x, float y) { return x + y; });
      if (lane_ % 4 != 0 || row(a) >= p_.Tq) continue;
      floors[row(a)] = total > 0 ? kLn2 * (top + log2f(total)) : -INFINITY;
    }
  }

 private:
  static __device__ __forceinline__ int first_row(int first) {
    return first + static_cast<int>(threadIdx.x) / 32 * 16 * kRowTiles;
  }
  static __device__ __forceinline__ int row_in_warp(int a) {
    return a / 2 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + a % 2 * 8;
  }
  __device__ __forceinline__ int row(int a) const {
    return first_ + row_in_warp(a);
  }

  __device__ __forceinline__ void hide(float (&scores)[kRowTiles][kColumnTiles][4], int base) {
#pragma unroll
    for (int a = 0; a < kOwn; ++a) {
#pragma unroll
      for (int i = 0; i < 2 * kColumnTiles; ++i) {
        const int key = base + i / 2 * 8 + lane_ % 4 * 2 + i % 2;
        if (!visible_[a].holds(key)) scores[a / 2][i / 2][a % 2 * 2 + i % 2] = -INFINITY;
      }
    }
  }

  // Of row a, those that this thread holds: lanes are combined at the end.
  __device__ __forceinline__ void add_row(const float (&scores)[kColumnTiles][4], int a) {
    float top = reference_[a];
#pragma unroll
    for (const float* pair : scores) top = fmaxf(top, fmaxf(pair[a % 2 * 2], pair[a % 2 * 2 + 1]));
    float even = 0, odd = 0;
#pragma unroll
    for (const float* pair : scores) {
      even += exp2_fast(pair[a % 2 * 2] - top);
      odd += exp2_fast(pair[a % 2 * 2 + 1] - top);
    }
    total_[a] = fmaf(total_[a], exp2_fast(reference_[a] - top), even + odd);
    reference_[a] = top;
  }

  const Problem& p_;
  const int lane_, first_;
  const float scale2_;
  KeyRange seen_, whole_;  // by some and by all of the warp's queries
  KeyRange visible_[kOwn];
  GateSum own_[kOwn];
  float reference_[kOwn], total_[kOwn];
};

template <class C>
__global__ void __launch_bounds__(kThreads, C::kBlocksPerProcessor)
    floors_kernel(const FloorTask task) {
  tensor::wait_for_kernel_before();
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<FloorShared<C>*>(raw);
  const Problem& p = task.problem;
  const int num_blocks = div_up(p.Tq, kRows), num_key_blocks = div_up(p.Tk, kKeys);
  const int h = blockIdx.x, m = blockIdx.y, b = blockIdx.z, group = p.H / p.G, g = h / group;
  const int64_t head = int64_t{b} * p.H + h;
  const int first = m * kRows, last = min(first + kRows, p.Tq);
  const int nearest = (p.causal ? p.Tk - p.Tq : p.Tk) / kKeys * kKeys;
  const int start = max(0, p.causal ? first + nearest - kKeys : nearest - 2 * kKeys);
  const KeyRange keys = {keys_from(p, b, start, first).begin, keys_from(p, b, start, last - 1).end};
  const int first_block = keys.begin / kKeys;
  const int end_block = keys.empty() ? first_block : div_up(keys.end, kKeys);
  // What registers need is asked for first, so that one wait serves all.
  const auto sum_of_key = [&](int key) {
    return p.key_sums ? p.key_sums[head * p.Tk + min(key, p.Tk - 1)] : 0;
  };
  const int thread = static_cast<int>(threadIdx.x);
  const bool has_key = thread < C::kStages * kKeys && first_block < end_block;
  const double key_sum = has_key ? sum_of_key(first_block * kKeys + thread) : 0;
  double own_sums[kOwn];
  FloorRows<C>::read_sums(p, head, first, own_sums);
  load_rows<C::kDim, kRows, kThreads>(
      shared_address(s.queries), p.q, p.D, b, h, first, {first, last});
  // Blocks of keys take stages by turns, the first one stage 0; the first ones lie side by side.
  const auto load_keys = [&](int n) {
    const uint32_t tile = shared_address(s.keys[(n - first_block) % C::kStages]);
    load_rows<C::kDim, kKeys, kThreads>(tile, p.k, p.D, b, g, n * kKeys, keys);
  };
  load_rows<C::kDim, C::kStages * kKeys, kThreads>(
      shared_address(s.keys[0]), p.k, p.D, b, g, first_block * kKeys, keys);
  commit_copies();
  int loaded = min(end_block, first_block + C::kStages);
  if (has_key) s.key_sums[thread / kKeys][thread % kKeys] = gate_sum(key_sum);
  if (thread < 2 * kWarps) s.squares[1 + thread / kWarps][thread % kWarps] = 0;
  FloorRows<C> rows(p, b, start, first, own_sums);
  wait_copies<0>();
  __syncthreads();

  const int warp = thread / 32;
  const bool lane_0 = thread % 32 == 0;
  if (task.query_norms) {
    const float square = largest_square<C, 2>(s.queries);
    if (lane_0) s.squares[0][warp] = square;
  }
  const bool own_keys = task.key_norms && h % group == 0;
  for (int n = first_block; n < end_block; ++n) {
    const int stage = (n - first_block) % C::kStages, own = n - first / kKeys;
    const uint32_t tile = shared_address(s.keys[stage]);
    if (own_keys && own >= 0) {
      const float square = largest_square<C, 4>(s.keys[stage]);
      if (lane_0) s.squares[1 + own][warp] = square;
    }
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      rows.add(shared_address(s.queries),
               tile + half * kHalf * C::kDim * 2,
               s.key_sums[stage] + half * kHalf,
               n * kKeys + half * kHalf);
    }
    if (loaded >= end_block) continue;
    __syncthreads();  // all have read the oldest block
    load_keys(loaded);
    commit_copies();
    if (thread < kKeys) s.key_sums[stage][thread] = gate_sum(sum_of_key(loaded * kKeys + thread));
    ++loaded;
    wait_copies<0>();
    __syncthreads();
  }
  rows.finish(task.floors + head * p.Tq);
  __syncthreads();
  if (thread == 0 && task.query_norms) {
    task.query_norms[head * num_blocks + m] = norm_of(s.squares[0]);
  }
  const int block = first / kKeys + thread;
  if (own_keys && thread < 2 && block < num_key_blocks) {
    task.key_norms[(int64_t{b} * p.G + g) * num_key_blocks + block] =
        norm_of(s.squares[1 + thread]);
  }
}

template <int kDim, class Scalar>
void launch_floors(const FloorTask& task, cudaStream_t stream) {
  using C = FloorConfig<kDim, Scalar>;
  const Problem& p = task.problem;
  constexpr int kBytes = sizeof(FloorShared<C>);
  cudaFuncSetAttribute(floors_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 blocks(p.H, div_up(p.Tq, kRows), p.B);
  tensor::launch_early(floors_kernel<C>, blocks, kThreads, kBytes, stream, task);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace

bool takes_floors(const Problem& p) {
  return p.D <= 256 && is_tileable(p.q, p.D) && is_tileable(p.k, p.D);
}

bool has_key_norms(const Problem& p) {
  return p.causal && p.Tq == p.Tk;
}

void floors(const FloorTask& task, cudaStream_t stream) {
  const auto with = [&]<class Scalar>(Scalar) {
    const int D = task.problem.D;
    const auto run = D <= 64    ? launch_floors<64, Scalar>
                     : D <= 128 ? launch_floors<128, Scalar>
                                : launch_floors<256, Scalar>;
    run(task, stream);
  };
  if (task.problem.q.element == Element::kHalf) {
    with(__half());
  } else {
    with(__nv_bfloat16());
  }
}

}  // namespace reynard::attention::cuda::sm80
