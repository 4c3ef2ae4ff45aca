// Where more than four heads share keys, half precision with 64 or 128 dimensions goes through the
// matrix unit (decode_tile.cuh). Else a warp reads a page row by row: kLanes lanes hold eight
// dimensions each of a key and of its value, so 32 / kLanes keys arrive with one load, and several
// loads are in flight. Lanes that share a key add up its score; each such group keeps a softmax of
// its own over the keys that it has seen. All heads of a key/value head use what was read (four at
// a time).

#include "reynard/attention/cuda/decode.h"

#include "reynard/attention/cuda/decode_tile.cuh"
#include "reynard/attention/cuda/launch.h"
#include "reynard/attention/cuda/registers.cuh"
#include "reynard/attention/cuda/visibility.cuh"

#include <algorithm>
#include <cmath>

namespace reynard::attention::cuda {

namespace {

constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.69314718055994531;
constexpr float kLowest = -1e30F;  // finite, so that differences of references are
// Of a block that attends to a run. Four heads take twice the registers of one.
template <int kHeads>
constexpr int kRunWarps = kHeads == 1 ? 8 : 4;
template <int kHeads>
constexpr int kRunBlocks = kHeads == 1 ? 2 : 3;    // at a time on a processor
constexpr int kWarps = 8, kThreads = 32 * kWarps;  // of a block that combines runs
constexpr int kDims = 8;                           // of a lane
constexpr int kLoads = 4;                          // of keys in flight, and as many of values
constexpr int kMostRowHeads = 4;                   // of a group that is read by rows
// Shorter runs leave more softmaxes to combine, longer ones end less evenly.
constexpr int kUsualRunPages = 48, kLeastRunPages = 8;

// Softmaxes of runs of pages, not yet combined.
struct Partials {
  float* largest;  // (S, H, runs) in powers of two
  float* total;    // (S, H, runs)
  float* out;      // (S, H, runs, D), not divided by total
};

struct Scratch {
  int32_t* first_pages;  // (S, H)
  Partials partials;
};

// Eight dimensions of a row; those beyond D are zeros. kWhole: D is a multiple of eight, so rows
// are aligned.
template <class Scalar, bool kWhole>
struct RowPiece {
  uint4 words[sizeof(Scalar) / 2];

  __device__ __forceinline__ void load(const Scalar* row, int d, int D, bool there) {
#pragma unroll
    for (uint4& w : words) w = {0, 0, 0, 0};
    if (!there) return;
    if constexpr (kWhole) {
      if (d >= D) return;
      const auto* from = reinterpret_cast<const uint4*>(row + d);
#pragma unroll
      for (int i = 0; i < static_cast<int>(sizeof(Scalar)) / 2; ++i) words[i] = __ldg(from + i);
    } else {
      auto* to = reinterpret_cast<Scalar*>(words);
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        if (d + i < D) to[i] = row[d + i];
      }
    }
  }
  __device__ __forceinline__ float at(int i) const {
    return static_cast<float>(reinterpret_cast<const Scalar*>(words)[i]);
  }
};

// The softmax of one head over the keys that a group of lanes has seen.
struct Softmax {
  float largest = kLowest, total = 0;
  float out[kDims] = {};

  __device__ __forceinline__ void raise(float top) {
    const float raised = fmaxf(largest, top), keep = exp2_fast(largest - raised);
    largest = raised;
    total *= keep;
#pragma unroll
    for (float& x : out) x *= keep;
  }
  // Adds the softmax of other keys.
  __device__ __forceinline__ void add(float other_largest, float other_total, const float* other) {
    raise(other_largest);
    const float weight = exp2_fast(other_largest - largest);
    total += weight * other_total;
#pragma unroll
    for (int i = 0; i < kDims; ++i) out[i] = fmaf(weight, other[i], out[i]);
  }
};

// One warp: its pages of a run, for kHeads heads of one key/value head.
template <class Scalar, int kLanes, int kHeads, bool kWhole>
class PageReader {
  static constexpr int kRows = 32 / kLanes;  // keys of one load

 public:
  __device__ __forceinline__
  PageReader(const DecodeTask& task, const int32_t* first_pages, int pair, int first_head)
      : t_(task),
        lane_(threadIdx.x % 32),
        d_(threadIdx.x % kLanes * kDims),
        group_(task.H / task.G),
        first_head_(first_head) {
    s_ = pair / t_.G;
    const int g = pair % t_.G;
    pages_ = t_.page_table + int64_t{pair} * t_.N;
    length_ = static_cast<int>(t_.lengths[s_]);
    const int first_key = t_.first_key ? max(t_.first_key[s_], 0) : 0;
    begin_ = length_;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      begins_[i] = length_;
      query_sums_[i] = 0;
      const int in_group = first_head + i;
      RowPiece<Scalar, kWhole> piece;
      const int64_t row = int64_t{s_} * t_.H + g * group_ + in_group;
      const bool there = in_group < group_;
      piece.load(static_cast<const Scalar*>(t_.q) + (there ? row * t_.D : 0), d_, t_.D, there);
#pragma unroll
      for (int d = 0; d < kDims; ++d) {
        q_[i][d] = piece.at(d) * static_cast<float>(t_.scale * kLog2E);
      }
      if (!there || length_ == 0) continue;
      begins_[i] = max(first_pages[row] * kPageKeys, first_key);
      begin_ = min(begin_, begins_[i]);
      if (t_.sums) query_sums_[i] = sums_of(pages_[(length_ - 1) / kPageKeys], i)[last_slot()];
    }
  }

  __device__ __forceinline__ bool reads(int n) const {
    return n * kPageKeys < length_ && (n + 1) * kPageKeys > begin_;
  }

  // The page with keys 64 n and on.
  __device__ __forceinline__ int32_t page(int n) const {
    return __ldg(pages_ + n);
  }

  __device__ __forceinline__ void read(int n, int32_t page) {
    const int64_t base = int64_t{page} * kPageKeys * t_.D;
    const auto* keys = static_cast<const Scalar*>(t_.keys) + base;
    const auto* values = static_cast<const Scalar*>(t_.values) + base;
    load_biases(page, n * kPageKeys);
#pragma unroll 1
    for (int row = lane_ / kLanes; row < kPageKeys; row += kRows * kLoads) {
      RowPiece<Scalar, kWhole> k[kLoads], v[kLoads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        const int slot = row + u * kRows, key = n * kPageKeys + slot;
        const bool there = key >= begin_ && key < length_;
        k[u].load(keys + slot * t_.D, d_, t_.D, there);
        v[u].load(values + slot * t_.D, d_, t_.D, there);
      }
#pragma unroll
      for (int i = 0; i < kHeads; ++i) add_rows(i, row, k, v);
    }
  }

  // Over the groups of lanes: afterwards all of them hold the warp's softmax. Both sides of a pair
  // compute the same bits: product and sum are rounded each by itself.
  __device__ __forceinline__ Softmax combined(int i) const {
    Softmax softmax = softmax_[i];
#pragma unroll
    for (int step = kLanes; step < 32; step *= 2) {
      const float other = __shfl_xor_sync(~0U, softmax.largest, step);
      const float raised = fmaxf(softmax.largest, other);
      const float keep = exp2_fast(softmax.largest - raised), weight = exp2_fast(other - raised);
      const auto add = [&](float own) {
        const float theirs = __shfl_xor_sync(~0U, own, step);
        return __fadd_rn(__fmul_rn(keep, own), __fmul_rn(weight, theirs));
      };
      softmax.largest = raised;
      softmax.total = add(softmax.total);
#pragma unroll
      for (float& x : softmax.out) x = add(x);
    }
    return softmax;
  }

 private:
  __device__ __forceinline__ int last_slot() const {
    return (length_ - 1) % kPageKeys;
  }
  __device__ __forceinline__ const double* sums_of(int32_t page, int i) const {
    return t_.sums + (int64_t{page} * group_ + first_head_ + i) * kPageKeys;
  }

  // c_i - c_j of a page's keys in powers of two, two keys a lane; -inf where a head sees nothing.
  __device__ __forceinline__ void load_biases(int32_t page, int base) {
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int slot = half * 32 + lane_, key = base + slot;
        const bool seen = key >= begins_[i] && key < length_;
        const double sum = seen && t_.sums ? sums_of(page, i)[slot] : 0;
        const float bias = static_cast<float>((query_sums_[i] - sum) * kLog2E);
        biases_[i][half] = seen ? bias : -INFINITY;
      }
    }
  }

  __device__ __forceinline__ void add_rows(int i,
                                           int row,
                                           const RowPiece<Scalar, kWhole> (&k)[kLoads],
                                           const RowPiece<Scalar, kWhole> (&v)[kLoads]) {
    float scores[kLoads];
    float top = kLowest;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      float score = 0;
#pragma unroll
      for (int d = 0; d < kDims; ++d) score = fmaf(q_[i][d], k[u].at(d), score);
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) score += __shfl_xor_sync(~0U, score, step);
      // The keys of one turn lie in one half of the page.
      const int slot = row + u * kRows;
      scores[u] = score + __shfl_sync(~0U, slot < 32 ? biases_[i][0] : biases_[i][1], slot % 32);
      top = fmaxf(top, scores[u]);
    }
    Softmax& own = softmax_[i];
    if (top > own.largest) own.raise(top);
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const float weight = exp2_fast(scores[u] - own.largest);
      own.total += weight;
#pragma unroll
      for (int d = 0; d < kDims; ++d) own.out[d] = fmaf(weight, v[u].at(d), own.out[d]);
    }
  }

  const DecodeTask& t_;
  const int lane_, d_, group_, first_head_;
  int s_, length_, begin_;  // the first key that any head sees
  const int32_t* pages_;
  int begins_[kHeads];
  double query_sums_[kHeads];
  float q_[kHeads][kDims];
  float biases_[kHeads][2];
  Softmax softmax_[kHeads];
};

// One warp's pages of a run. Where a page lies is looked up while the one before is read.
template <int kWarps, class Reader>
__device__ __forceinline__ void read_run(const DecodeTask& task,
                                         Reader& reader,
                                         int run,
                                         int warp) {
  const int end = min((run + 1) * task.run_pages, task.N);
  int n = run * task.run_pages + warp;
  int32_t page = n < end ? reader.page(n) : 0;
  for (; n < end; n += kWarps) {
    const int32_t next = n + kWarps < end ? reader.page(n + kWarps) : 0;
    if (reader.reads(n)) reader.read(n, page);
    page = next;
  }
}

template <class Scalar, int kLanes, int kHeads, bool kWhole>
__global__ void __launch_bounds__(32 * kRunWarps<kHeads>, kRunBlocks<kHeads>)
    runs_kernel(const DecodeTask task, const Scratch scratch) {
  constexpr int kWarps = kRunWarps<kHeads>;
  __shared__ float largest[kWarps], total[kWarps];
  __shared__ float out[kWarps][kLanes * kDims];
  let_next_kernel_start();
  wait_for_kernel_before();
  const int run = blockIdx.x, pair = blockIdx.y, first_head = blockIdx.z * kHeads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = task.H / task.G, num_runs = task.num_runs;
  PageReader<Scalar, kLanes, kHeads, kWhole> reader(task, scratch.first_pages, pair, first_head);
  read_run<kWarps>(task, reader, run, warp);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (first_head + i >= group) break;
    const Softmax own = reader.combined(i);
    __syncthreads();  // what the head before left has been read
    if (lane == 0) largest[warp] = own.largest, total[warp] = own.total;
    if (lane < kLanes) {
#pragma unroll
      for (int d = 0; d < kDims; ++d) out[warp][lane * kDims + d] = own.out[d];
    }
    __syncthreads();
    if (warp != 0) continue;
    Softmax all;
    for (int w = 0; w < kWarps; ++w) all.add(largest[w], total[w], out[w] + lane % kLanes * kDims);
    const int64_t head = int64_t{pair} * group + first_head + i, row = head * num_runs + run;
    if (lane == 0) {
      scratch.partials.largest[row] = all.largest;
      scratch.partials.total[row] = all.total;
    }
#pragma unroll
    for (int d = 0; d < kDims; ++d) {
      const int at = lane * kDims + d;
      if (lane < kLanes && at < task.D) scratch.partials.out[row * task.D + at] = all.out[d];
    }
  }
}

constexpr int kTileWarps = 4, kTileBlocks = 3;

// One warp's rows of a tile, then those of the warps in order.
template <class Scalar, int kDim>
__global__ void __launch_bounds__(32 * kTileWarps, kTileBlocks)
    tile_runs_kernel(const DecodeTask task, const Scratch scratch) {
  __shared__ float largest[kTileWarps][kTileHeads], total[kTileWarps][kTileHeads];
  __shared__ float out[kTileWarps][kTileHeads][kDim];
  let_next_kernel_start();
  wait_for_kernel_before();
  const int run = blockIdx.x, pair = blockIdx.y, first_head = blockIdx.z * kTileHeads;
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4;
  const int group = task.H / task.G, num_heads = min(group - first_head, kTileHeads);
  TileReader<Scalar, kDim> reader(task, scratch.first_pages, pair, first_head);
  read_run<kTileWarps>(task, reader, run, warp);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = reader.total(r);
    if (row + 8 * r >= num_heads) continue;
    largest[warp][row + 8 * r] = reader.reference(r), total[warp][row + 8 * r] = sum;
    reader.store(r, out[warp][row + 8 * r]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_heads * kDim; i += 32 * kTileWarps) {
    const int head = i / kDim, d = i % kDim;
    float top = kLowest, weight = 0, value = 0;
    for (int w = 0; w < kTileWarps; ++w) top = fmaxf(top, largest[w][head]);
    for (int w = 0; w < kTileWarps; ++w) {
      const float keep = exp2_fast(largest[w][head] - top);
      weight = fmaf(keep, total[w][head], weight);
      value = fmaf(keep, out[w][head][d], value);
    }
    const int64_t at = (int64_t{pair} * group + first_head + head) * task.num_runs + run;
    scratch.partials.out[at * kDim + d] = value;
    if (d == 0) scratch.partials.largest[at] = top, scratch.partials.total[at] = weight;
  }
}

// The runs of one query, those that saw nothing too: the largest reference first, then every group
// of threads its share of the runs, kOwn dimensions a thread, then the groups in order.
template <class Scalar, int kOwn>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const DecodeTask task, const Scratch scratch, int width) {
  struct alignas(4 * kOwn) Dims {
    float at[kOwn] = {};
  };
  __shared__ float of_warps[kWarps], totals[kThreads];
  __shared__ Dims outs[kThreads];
  wait_for_kernel_before();
  const int64_t head = blockIdx.x, row = head * task.num_runs;
  float top = kLowest;
  for (int run = static_cast<int>(threadIdx.x); run < task.num_runs; run += kThreads) {
    top = fmaxf(top, __ldg(scratch.partials.largest + row + run));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0U, top, step));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = top;
  __syncthreads();
  for (const float other : of_warps) top = fmaxf(top, other);

  // width: D / kOwn rounded up to a power of two
  const int group = threadIdx.x / width, num_groups = kThreads / width;
  const int d = static_cast<int>(threadIdx.x) % width * kOwn;
  Dims out;
  float total = 0;
#pragma unroll 4
  for (int run = group; run < task.num_runs; run += num_groups) {
    const int64_t at = row + run;
    const float weight = exp2_fast(__ldg(scratch.partials.largest + at) - top);
    total = fmaf(weight, __ldg(scratch.partials.total + at), total);
    if (d >= task.D) continue;
    const Dims own = *reinterpret_cast<const Dims*>(scratch.partials.out + at * task.D + d);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) out.at[i] = fmaf(weight, own.at[i], out.at[i]);
  }
  outs[threadIdx.x] = out, totals[threadIdx.x] = total;
  __syncthreads();
  if (group != 0 || d >= task.D) return;
  for (int other = 1; other < num_groups; ++other) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) out.at[i] += outs[other * width + threadIdx.x].at[i];
    total += totals[other * width + threadIdx.x];
  }
  const bool sees = total > 0;
  if (d == 0) {
    const double lse = kLn2 * (top + log2f(total));
    task.lse[head] = sees ? static_cast<float>(lse) : -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    static_cast<Scalar*>(task.out)[head * task.D + d + i] =
        static_cast<Scalar>(sees ? out.at[i] / total : 0.0F);
  }
}

template <class Scalar>
void combine(const DecodeTask& task, const Scratch& scratch, cudaStream_t stream) {
  constexpr int kOwn = 4;
  const bool whole = task.D % kOwn == 0;
  const int threads = whole ? task.D / kOwn : task.D;
  int width = 1;
  while (width < threads) width *= 2;
  const auto kernel = whole ? &combine_kernel<Scalar, kOwn> : &combine_kernel<Scalar, 1>;
  const dim3 blocks(task.S * task.H);
  launch_early(kernel, blocks, kThreads, stream, task.overlaps, task, scratch, width);
  REYNARD_CUDA_CHECK_LAUNCH();
}

// Blocks of threads of a run and a pair.
int head_blocks(const DecodeTask& task, int heads) {
  return div_up(task.H / task.G, heads);
}

template <class Scalar, int kDim>
void launch_tiles(const DecodeTask& task, const Scratch& scratch, cudaStream_t stream) {
  const dim3 blocks(task.num_runs, task.S * task.G, head_blocks(task, kTileHeads));
  launch_early(tile_runs_kernel<Scalar, kDim>,
               blocks,
               32 * kTileWarps,
               stream,
               task.overlaps,
               task,
               scratch);
  REYNARD_CUDA_CHECK_LAUNCH();
  combine<Scalar>(task, scratch, stream);
}

template <class Scalar, int kLanes, bool kWhole>
void launch(const DecodeTask& task, const Scratch& scratch, cudaStream_t stream) {
  const bool single = task.H == task.G;
  const int heads = single ? 1 : kMostRowHeads;
  const int threads = 32 * (single ? kRunWarps<1> : kRunWarps<kMostRowHeads>);
  const auto kernel = single ? &runs_kernel<Scalar, kLanes, 1, kWhole>
                             : &runs_kernel<Scalar, kLanes, kMostRowHeads, kWhole>;
  const dim3 blocks(task.num_runs, task.S * task.G, head_blocks(task, heads));
  launch_early(kernel, blocks, threads, stream, task.overlaps, task, scratch);
  REYNARD_CUDA_CHECK_LAUNCH();
  combine<Scalar>(task, scratch, stream);
}

bool takes_tiles(const DecodeTask& task) {
  return task.H / task.G > kMostRowHeads && task.element != Element::kFloat &&
         (task.D == 64 || task.D == 128);
}

template <class Scalar>
void launch_dimension(const DecodeTask& task, const Scratch& scratch, cudaStream_t stream) {
  if constexpr (sizeof(Scalar) == 2) {
    if (takes_tiles(task)) {
      return task.D == 64 ? launch_tiles<Scalar, 64>(task, scratch, stream)
                          : launch_tiles<Scalar, 128>(task, scratch, stream);
    }
  }
  if (task.D % kDims != 0) {
    launch<Scalar, 32, false>(task, scratch, stream);
  } else if (task.D <= 64) {
    launch<Scalar, 8, true>(task, scratch, stream);
  } else if (task.D <= 128) {
    launch<Scalar, 16, true>(task, scratch, stream);
  } else {
    launch<Scalar, 32, true>(task, scratch, stream);
  }
}

}  // namespace

// As many runs as fill the processors a whole number of times.
void plan_runs(DecodeTask& task, int num_processors) {
  const bool single = task.H == task.G, tiles = takes_tiles(task);
  const int heads = tiles ? kTileHeads : single ? 1 : kMostRowHeads;
  const int at_a_time = tiles ? kTileBlocks : single ? kRunBlocks<1> : kRunBlocks<kMostRowHeads>;
  const int64_t places = int64_t{num_processors} * at_a_time;
  const int64_t columns = int64_t{task.S} * task.G * head_blocks(task, heads);
  const int64_t turns = std::max<int64_t>(
      (task.N * columns + kUsualRunPages * places / 2) / (kUsualRunPages * places), 1);
  const int runs = static_cast<int>(std::max<int64_t>(turns * places / columns, 1));
  task.run_pages = std::max(div_up(task.N, runs), kLeastRunPages);
  task.num_runs = div_up(task.N, task.run_pages);
}

int64_t decode_scratch_bytes(const DecodeTask& task) {
  const int64_t rows = int64_t{task.S} * task.H, runs = rows * task.num_runs;
  return (rows + runs * (2 + task.D)) * 4;
}

void decode(const DecodeTask& task, void* scratch, cudaStream_t stream) {
  const int64_t rows = int64_t{task.S} * task.H, runs = rows * task.num_runs;
  Scratch arrays;
  arrays.partials.out = static_cast<float*>(scratch);
  arrays.partials.largest = arrays.partials.out + runs * task.D;
  arrays.partials.total = arrays.partials.largest + runs;
  arrays.first_pages = reinterpret_cast<int32_t*>(arrays.partials.total + runs);
  find_first_pages(task, arrays.first_pages, stream);
  switch (task.element) {
    case Element::kFloat:
      return launch_dimension<float>(task, arrays, stream);
    case Element::kBFloat16:
      return launch_dimension<__nv_bfloat16>(task, arrays, stream);
    case Element::kHalf:
      return launch_dimension<__half>(task, arrays, stream);
  }
}

}  // namespace reynard::attention::cuda
