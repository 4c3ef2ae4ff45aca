// One block of threads per block of 128 queries of one head; each warp owns 16 of them, whose floor
// is made of their own 16 keys and of the 16 before. More would raise it little: where gates close,
// they weigh less; where they do not, the rule reaches over thousands of keys for each power of e.
// Heads of the same rows are neighbours, since they lie side by side in memory. All of a block is
// asked for at once (up to 128 dimensions), and no kernel before prepares anything.

#include "reynard/attention/cuda/sm80/floors.h"

#include "reynard/attention/cuda/logarithms.cuh"
#include "reynard/attention/cuda/sm80/tile.cuh"
#include "reynard/attention/cuda/split_sum.cuh"
#include "reynard/attention/pruning_limits.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <cmath>

namespace reynard::attention::cuda::sm80 {

namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kRows = static_cast<int>(kQueryBlock), kKeys = static_cast<int>(kKeyBlock);
constexpr int kBefore = 16, kNear = kBefore + 16;  // keys of a warp
constexpr int kOwn = 2;                            // rows of a thread
static_assert(kRows == 16 * kWarps && kRows % kKeys == 0);

// kDim: head dimension rounded up to 64, 128 or 256.
template <int kDim_, class Scalar_>
struct FloorConfig {
  static constexpr int kDim = kDim_;
  using Scalar = Scalar_;
  // Queries at a time, so that 256 dimensions fit into the 99 KB of the smallest GPU.
  static constexpr int kRound = kDim == 256 ? kRows / 2 : kRows;
  static constexpr int kTile = kBefore + kRound;  // keys
  static_assert(kTile <= kThreads);               // a sum of gates each
  static constexpr int kBlocksPerProcessor = kDim == 64 ? 4 : kDim == 128 ? 3 : 2;
};

template <class C>
struct alignas(128) FloorShared {
  char queries[C::kRound * C::kDim * 2];
  char keys[C::kTile * C::kDim * 2];
  alignas(16) SplitSum key_sums[C::kTile];
  float query_squares[kWarps], key_squares[kWarps];  // the largest that each saw
};

// The largest square of a norm over 16 rows, by a warp: the diagonal of their products with
// themselves, which the matrix unit sums to a few 2^-22 a step (kNormMargin leaves 1e-5). As bits
// NaN is larger than every number.
template <class C>
__device__ __forceinline__ float largest_square(uint32_t rows) {
  const int lane = threadIdx.x % 32, column = lane / 4 - lane % 4 * 2;
  const LaneAddress<C::kDim> left(lane, false), right(lane, true);
  float first[4] = {}, last[4] = {};  // times the first 8 of them, and the others
#pragma unroll
  for (int step = 0; step < C::kDim / 16; ++step) {
    uint32_t a[4], b[4];
    load_matrices(a, left.at(rows, 0, step));
    load_matrices(b, right.at(rows, 0, step));
    multiply<typename C::Scalar>(first, a, b[0], b[1]);
    multiply<typename C::Scalar>(last, a, b[2], b[3]);
  }
  unsigned own = 0;
  if (column == 0) own = max(__float_as_uint(first[0]), __float_as_uint(last[2]));
  if (column == 1) own = max(__float_as_uint(first[1]), __float_as_uint(last[3]));
  return __uint_as_float(__reduce_max_sync(~0U, own));
}

// Of the rows whose largest squares some warps saw.
__device__ float norm_of(const float* squares, int warps) {
  unsigned largest = 0;
  for (int w = 0; w < warps; ++w) largest = max(largest, __float_as_uint(squares[w]));
  return sqrtf(__uint_as_float(largest)) * kNormMargin;
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
#pragma unroll
    for (int a = 0; a < kOwn; ++a) {
      visible_[a] = row(a) < p.Tq ? keys_from(p, b, start, row(a)) : KeyRange();
      own_[a] = split_sum(sums[a]);
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

  // The log-sum-exps of the kNear keys from `base` on, in powers of e.
  __device__ __forceinline__ void write(
      uint32_t queries, uint32_t keys, const SplitSum* sums, int base, double* floors) const {
    float scores[1][kNear / 8][4];
    const auto left = [&](uint32_t(&a)[4], int /*row_tile*/, int step) {
      const LaneAddress<C::kDim> address(lane_, false);
      load_matrices(a, address.at(queries, 0, step));
    };
    multiply_rows<typename C::Scalar, C::kDim>(left, keys, scores);
#pragma unroll
    for (int i = 0; i < kNear / 8; ++i) {
      const float4 pair = *reinterpret_cast<const float4*>(sums + i * 8 + lane_ % 4 * 2);
#pragma unroll
      for (int a = 0; a < kOwn; ++a) {
        float* score = scores[0][i] + a * 2;
        const SplitSum& own = own_[a];
        score[0] = fmaf(score[0], scale2_, own.low - pair.y) + (own.high - pair.x);
        score[1] = fmaf(score[1], scale2_, own.low - pair.w) + (own.high - pair.z);
        const int key = base + i * 8 + lane_ % 4 * 2;
        if (!visible_[a].holds(key)) score[0] = -INFINITY;
        if (!visible_[a].holds(key + 1)) score[1] = -INFINITY;
      }
    }
#pragma unroll
    for (int a = 0; a < kOwn; ++a) {
      const float floor = log_sum_exp(scores[0], a);
      if (lane_ % 4 == 0 && row(a) < p_.Tq) floors[row(a)] = kLn2 * floor;
    }
  }

 private:
  static __device__ __forceinline__ int first_row(int first) {
    return first + static_cast<int>(threadIdx.x) / 32 * 16;
  }
  static __device__ __forceinline__ int row_in_warp(int a) {
    return static_cast<int>(threadIdx.x) % 32 / 4 + a * 8;
  }
  __device__ __forceinline__ int row(int a) const {
    return first_ + row_in_warp(a);
  }

  // Of row a, all in powers of two; -inf where nothing is seen, NaN where a score is.
  static __device__ __forceinline__ float log_sum_exp(const float (&scores)[kNear / 8][4], int a) {
    float top = kLowest;
#pragma unroll
    for (const float* pair : scores) top = fmaxf(top, fmaxf(pair[a * 2], pair[a * 2 + 1]));
    top = over_row(top, [](float x, float y) { return fmaxf(x, y); });
    float even = 0, odd = 0;
#pragma unroll
    for (const float* pair : scores) {
      even += exp2_approx(pair[a * 2] - top);
      odd += exp2_approx(pair[a * 2 + 1] - top);
    }
    const float total = over_row(even + odd, [](float x, float y) { return x + y; });
    return total == 0 ? -INFINITY : top + log2f(total);
  }

  const Problem& p_;
  const int lane_, first_;
  const float scale2_;
  KeyRange visible_[kOwn];
  SplitSum own_[kOwn];
};

// log sum_j exp(-c_j) of a block of at most 64 keys, by a warp.
__device__ double mass_of(const SplitSum* sums, int count) {
  const SplitSum last = sums[count - 1];
  float total = 0;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x) % 32; i < kKeys; i += 32) {
    const float decay = difference(last, sums[i]);
    if (i < count) total += exp2_approx(decay);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(~0U, total, step);
  return kLn2 * (log2f(total) - (static_cast<double>(last.high) + last.low));
}

// Whether the rule asks for nothing of a head.
__device__ bool is_left_alone(const FloorTask& task, int64_t head) {
  const Problem& p = task.problem;
  if (!(task.log_tolerance < 0) || !p.query_sums || !p.key_sums) return false;
  const double fading = p.query_sums[head * p.Tq + p.Tq - 1] - p.key_sums[head * p.Tk];
  return keeps_all_keys(fading, task.log_tolerance);
}

template <class C>
__global__ void __launch_bounds__(kThreads, C::kBlocksPerProcessor)
    floors_kernel(const FloorTask task, int group) {
  tensor::wait_for_kernel_before();
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<FloorShared<C>*>(raw);
  const Problem& p = task.problem;
  const int num_blocks = div_up(p.Tq, kRows), num_key_blocks = div_up(p.Tk, kKeys);
  const int h = blockIdx.x, m = blockIdx.y, b = blockIdx.z;
  // Divisions of integers are long beside the rest.
  const int g = group == 1 ? h : h / group;
  const int64_t head = int64_t{b} * p.H + h;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, first = m * kRows;
  const bool own_keys = task.of_blocks.key_norms && g * group == h;
  double own_sums[kOwn];
  FloorRows<C>::read_sums(p, head, first, own_sums);
  if (group == 1 && is_left_alone(task, head)) return;
  if (thread < kWarps) s.query_squares[thread] = s.key_squares[thread] = 0;
  constexpr int kRowBytes = C::kDim * 2, kRounds = kRows / C::kRound;
  for (int round = 0; round < kRounds; ++round) {
    // Rows of this round and the keys that are near to them, from `nearest` on.
    const int begin = first + round * C::kRound, last = min(begin + C::kRound, p.Tq) - 1;
    if (begin > last) break;
    const int nearest = p.causal ? begin + p.Tk - p.Tq - kBefore : p.Tk - kNear;
    const int start = max(0, nearest);
    const KeyRange keys = {keys_from(p, b, start, begin).begin, keys_from(p, b, start, last).end};
    const auto load_keys = [&]<int kCount, int kOf>(int row) {
      const uint32_t tile = shared_address(s.keys) + row * kRowBytes;
      load_rows<C::kDim, kCount, kOf>(tile, rows_of(p.k, b, g), p.D, nearest + row, keys);
    };
    if (round > 0) __syncthreads();  // all have read the tiles before
    load_rows<C::kDim, C::kRound, kThreads>(
        shared_address(s.queries), rows_of(p.q, b, h), p.D, begin, {begin, last + 1});
    constexpr int kPieces = kBefore * C::kDim / 8, kFew = kPieces < kThreads ? kPieces : kThreads;
    if (thread < kFew) load_keys.template operator()<kBefore, kFew>(0);
    load_keys.template operator()<C::kRound, kThreads>(kBefore);
    commit_copies();
    if (thread < C::kTile && p.key_sums) {
      const int key = min(max(nearest + thread, 0), p.Tk - 1);
      s.key_sums[thread] = split_sum(p.key_sums[head * p.Tk + key]);
    } else if (thread < C::kTile) {
      s.key_sums[thread] = {};
    }
    const FloorRows<C> rows(p, b, start, first, own_sums);
    wait_copies<0>();
    __syncthreads();
    const int in_round = warp * 16 - round * C::kRound, near = p.causal ? in_round : 0;
    if (in_round < 0 || in_round >= C::kRound) continue;
    rows.write(shared_address(s.queries) + in_round * kRowBytes,
               shared_address(s.keys) + near * kRowBytes,
               s.key_sums + near,
               nearest + near,
               task.floors + head * p.Tq);
    if (task.of_blocks.query_norms) {
      const float square = largest_square<C>(shared_address(s.queries) + in_round * kRowBytes);
      if (thread % 32 == 0) s.query_squares[warp] = square;
    }
    if (own_keys) {
      const float square =
          largest_square<C>(shared_address(s.keys) + (kBefore + in_round) * kRowBytes);
      if (thread % 32 == 0) s.key_squares[warp] = square;
    }
    const int key = first + warp * 16;  // that of the first row
    if (task.of_blocks.masses && key % kKeys == 0 && key < p.Tk) {
      const double mass = mass_of(s.key_sums + kBefore + in_round, min(kKeys, p.Tk - key));
      if (thread % 32 == 0) task.of_blocks.masses[head * num_key_blocks + key / kKeys] = mass;
    }
  }
  __syncthreads();
  if (thread == 0 && task.of_blocks.query_norms) {
    task.of_blocks.query_norms[head * num_blocks + m] = norm_of(s.query_squares, kWarps);
  }
  const int block = first / kKeys + thread;
  if (own_keys && thread < kRows / kKeys && block < num_key_blocks) {
    task.of_blocks.key_norms[(int64_t{b} * p.G + g) * num_key_blocks + block] =
        norm_of(s.key_squares + thread * (kKeys / 16), kKeys / 16);
  }
}

template <int kDim, class Scalar>
void launch_floors(const FloorTask& task, cudaStream_t stream) {
  using C = FloorConfig<kDim, Scalar>;
  const Problem& p = task.problem;
  constexpr int kBytes = sizeof(FloorShared<C>);
  cudaFuncSetAttribute(floors_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 blocks(p.H, div_up(p.Tq, kRows), p.B);
  tensor::launch_early(floors_kernel<C>, blocks, kThreads, kBytes, stream, task, p.H / p.G);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace

bool takes_floors(const Problem& p) {
  constexpr int kMostBlocks = 65535;  // of a grid in its second and third dimension
  return p.D <= 256 && is_tileable(p.q, p.D) && is_tileable(p.k, p.D) && p.B <= kMostBlocks &&
         div_up(p.Tq, kRows) <= kMostBlocks;
}

bool measures_blocks(const Problem& p) {
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
