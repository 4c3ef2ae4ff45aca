// Where more than four heads share keys, half precision with 64 or 128 dimensions goes through the
// matrix unit (decode_tile.cuh), else rows are read by lanes (decode_rows.cuh), for four heads at a
// time.

#include "reynard/attention/cuda/decode.h"

#include "reynard/attention/cuda/decode_combine.cuh"
#include "reynard/attention/cuda/decode_rows.cuh"
#include "reynard/attention/cuda/decode_tile.cuh"
#include "reynard/attention/cuda/visibility.cuh"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <algorithm>

namespace reynard::attention::cuda {

namespace {

// Of a block that attends to a run. Four heads take twice the registers of one.
template <int kHeads>
constexpr int kRunWarps = kHeads == 1 ? 8 : 4;
template <int kHeads>
constexpr int kRunBlocks = kHeads == 1 ? 2 : 3;  // at a time on a processor
constexpr int kCombineThreads = 256;             // of a block that combines runs
constexpr int kMostRowHeads = 4;                 // of a group that is read by rows
// Shorter runs leave more softmaxes to combine, longer ones end less evenly where pages are pruned.
constexpr int kUsualRunPages = 96, kUsualPrunedRunPages = 48, kLeastRunPages = 8;
// Where a few heads have all that is read, still shorter ones keep the GPU busy, as long as those
// that nothing reads do not take many turns.
constexpr int kShortPrunedRunPages = 16, kMostShortTurns = 4;
// Turns of blocks in which the last block of a query combines its runs: who waits for a kernel of
// its own waits longer, but in many turns every block pays for asking whether it is the last.
constexpr int kMostCombiningTurns = 2;
// A cache this many times as large as the L2 cache drives out what is there in any case.
constexpr int kPassingSizes = 6;

struct Scratch {
  int32_t* first_pages;  // (S, H), or null: every page that lies there is read
  int32_t* finished;     // (S, H) runs of a query, or null: combine_kernel follows
  Partials partials;
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
    if (page >= 0 && reader.reads(n)) reader.read(n, page);  // else evicted, or not seen
    page = next;
  }
}

// Whether this run holds keys that its heads read. What find_first_pages left is waited for where
// it is needed: by readers of pruned rows, and by all before they write to scratch.
template <class Reader>
__device__ __forceinline__ bool begins_run(Reader& reader,
                                           const DecodeTask& task,
                                           const Scratch& scratch) {
  if (scratch.first_pages) tensor::wait_for_kernel_before();
  reader.begin_at(scratch.first_pages);
  const RunRange runs = runs_from(task, reader.begin(), reader.length());
  const int run = blockIdx.x;
  return run >= runs.first && run < runs.end;
}

template <class Scalar, int kLanes, int kHeads, bool kWhole>
__global__ void __launch_bounds__(32 * kRunWarps<kHeads>, kRunBlocks<kHeads>)
    runs_kernel(const DecodeTask task, const Scratch scratch) {
  constexpr int kWarps = kRunWarps<kHeads>;
  __shared__ float largest[kWarps], total[kWarps];
  __shared__ float out[kWarps][kLanes * kDims];
  tensor::let_next_kernel_start();
  const int run = blockIdx.x, pair = blockIdx.y, first_head = blockIdx.z * kHeads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = task.H / task.G, num_runs = task.num_runs;
  PageReader<Scalar, kLanes, kHeads, kWhole> reader(task, pair, first_head);
  if (!begins_run(reader, task, scratch)) return;
  read_run<kWarps>(task, reader, run, warp);
  tensor::wait_for_kernel_before();
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
  if constexpr (kHeads == 1) {
    constexpr int kOwn = kWhole ? 4 : 1, kWidth = kLanes * kDims / kOwn;
    const RunRange runs = runs_from(task, reader.begin(), reader.length());
    const int num_read = runs.end - runs.first;
    if (!scratch.finished || !is_last_of_runs(scratch.finished + pair, num_read)) return;
    combine_runs<Scalar, kOwn, 32 * kWarps>(task, scratch.partials, pair, runs, kWidth);
  }
}

constexpr int kTileWarps = 4, kTileBlocks = 3;

// One warp's rows of a tile, then those of the warps in order.
template <class Scalar, int kDim>
__global__ void __launch_bounds__(32 * kTileWarps, kTileBlocks)
    tile_runs_kernel(const DecodeTask task, const Scratch scratch) {
  __shared__ float largest[kTileWarps][kTileHeads], total[kTileWarps][kTileHeads];
  __shared__ float out[kTileWarps][kTileHeads][kDim];
  tensor::let_next_kernel_start();
  const int run = blockIdx.x, pair = blockIdx.y, first_head = blockIdx.z * kTileHeads;
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4;
  const int group = task.H / task.G, num_heads = min(group - first_head, kTileHeads);
  TileReader<Scalar, kDim> reader(task, pair, first_head);
  if (!begins_run(reader, task, scratch)) return;
  read_run<kTileWarps>(task, reader, run, warp);
  tensor::wait_for_kernel_before();
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
      const float keep = exp2_approx(largest[w][head] - top);
      weight = fmaf(keep, total[w][head], weight);
      value = fmaf(keep, out[w][head][d], value);
    }
    const int64_t at = (int64_t{pair} * group + first_head + head) * task.num_runs + run;
    scratch.partials.out[at * kDim + d] = value;
    if (d == 0) scratch.partials.largest[at] = top, scratch.partials.total[at] = weight;
  }
}

template <class Scalar, int kOwn>
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const DecodeTask task, const Scratch scratch, int width) {
  tensor::wait_for_kernel_before();
  tensor::let_next_kernel_start();
  const int head = blockIdx.x, s = head / task.H;
  const int first_page = scratch.first_pages ? scratch.first_pages[head] : 0;
  const int begin = max(first_page * kPageKeys, task.first_key ? task.first_key[s] : 0);
  const RunRange runs = runs_from(task, begin, static_cast<int>(task.lengths[s]));
  combine_runs<Scalar, kOwn, kCombineThreads>(task, scratch.partials, head, runs, width);
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
  tensor::launch_early(kernel, blocks, kCombineThreads, 0, stream, task, scratch, width);
  REYNARD_CHECK_LAUNCH();
}

// Blocks of threads of a run and a pair.
int head_blocks(const DecodeTask& task, int heads) {
  return div_up(task.H / task.G, heads);
}

template <class Scalar, int kDim>
void launch_tiles(const DecodeTask& task, const Scratch& scratch, cudaStream_t stream) {
  const dim3 blocks(task.num_runs, task.S * task.G, head_blocks(task, kTileHeads));
  tensor::launch_early(
      tile_runs_kernel<Scalar, kDim>, blocks, 32 * kTileWarps, 0, stream, task, scratch);
  REYNARD_CHECK_LAUNCH();
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
  tensor::launch_early(kernel, blocks, threads, 0, stream, task, scratch);
  REYNARD_CHECK_LAUNCH();
  if (!scratch.finished) combine<Scalar>(task, scratch, stream);
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
  const auto turns_of = [&](int64_t pages) {
    const int64_t usual = places * pages;
    return std::max<int64_t>((task.N * columns + usual / 2) / usual, 1);
  };
  int64_t turns = turns_of(kUsualRunPages), most_combining = kMostCombiningTurns;
  if (task.prunes()) {
    most_combining = kMostShortTurns;
    turns = std::max(turns_of(kUsualPrunedRunPages),
                     std::min<int64_t>(turns_of(kShortPrunedRunPages), kMostShortTurns));
  }
  const int runs = static_cast<int>(std::max<int64_t>(turns * places / columns, 1));
  task.run_pages = std::max(div_up(task.N, runs), kLeastRunPages);
  task.num_runs = div_up(task.N, task.run_pages);
  task.last_combines = single && turns <= most_combining;
  int device = 0, cache_bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device);
  const int64_t row_bytes = int64_t{task.D} * (task.element == Element::kFloat ? 4 : 2);
  const int64_t bytes = 2 * int64_t{task.S} * task.G * task.N * kPageKeys * row_bytes;
  const bool passes = bytes <= int64_t{kPassingSizes} * cache_bytes;
  task.caching = passes ? Caching::kLetGoFirst : Caching::kKept;
}

int64_t decode_scratch_bytes(const DecodeTask& task) {
  const int64_t rows = int64_t{task.S} * task.H, runs = rows * task.num_runs;
  return (2 * rows + runs * (2 + task.D)) * 4;
}

void decode(const DecodeTask& task, void* scratch, cudaStream_t stream) {
  const int64_t rows = int64_t{task.S} * task.H, runs = rows * task.num_runs;
  Scratch arrays;
  arrays.partials.out = static_cast<float*>(scratch);
  arrays.partials.largest = arrays.partials.out + runs * task.D;
  arrays.partials.total = arrays.partials.largest + runs;
  auto* counters = reinterpret_cast<int32_t*>(arrays.partials.total + runs);
  arrays.finished = task.last_combines ? counters : nullptr;
  arrays.first_pages = task.prunes() ? counters + rows : nullptr;
  find_first_pages(task, arrays.first_pages, counters, stream);
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
