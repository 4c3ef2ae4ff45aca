#include "reynard/attention/cuda/sm80/backward.h"

#include "reynard/attention/cuda/sm80/differentiate.cuh"
#include "reynard/attention/cuda/sm80/records.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::attention::cuda::sm80 {

namespace {

// dq and the sums of dS over keys: one block of threads per block of queries of one head.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 2)
    query_kernel(const BackwardTask task, const Records records) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<Shared<C>*>(raw);
  const Problem& p = task.problem;
  const int num_blocks = div_up(p.Tq, C::kRows);
  const int head = blockIdx.x / num_blocks, m = num_blocks - 1 - blockIdx.x % num_blocks;
  const int b = head / p.H, h = head % p.H, g = h / (p.H / p.G);
  const int first = m * C::kRows, last = min(first + C::kRows, p.Tq);
  const KeyRange keys = keys_of_queries(p, b, h, first, last);
  const KeyRecord* key_records = records.keys + head * padded(p.Tk);

  const auto load = [&](Tiles<C>& tile, int n) {
    const int base = n * C::kColumns;
    load_rows<C::kDim, C::kColumns, C::kThreads>(
        shared_address(tile.first), rows_of(p.k, b, g), p.D, base, keys);
    load_rows<C::kDim, C::kColumns, C::kThreads>(
        shared_address(tile.second), rows_of(p.v, b, g), p.D, base, keys);
    load_records<C::kColumns, C::kThreads>(shared_address(tile.records), key_records + base);
  };
  const int begin = keys.begin / C::kColumns;
  const int end = keys.empty() ? begin : div_up(keys.end, C::kColumns);
  load_rows<C::kDim, C::kRows, C::kThreads>(
      shared_address(s.first), rows_of(p.q, b, h), p.D, first, {first, last});
  load_rows<C::kDim, C::kRows, C::kThreads>(
      shared_address(s.second), rows_of(task.dout, b, h), p.D, first, {first, last});
  if (begin < end) load(s.tiles[0], begin);
  commit_copies();
  Rows<C> rows(p, first);
  rows.start_head(records.queries + head * padded(p.Tq));

  for (int n = begin; n < end; ++n) {
    const int stage = (n - begin) & 1;
    if (n + 1 < end) load(s.tiles[stage ^ 1], n + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    rows.differentiate(s, s.tiles[stage], n * C::kColumns);
    __syncthreads();
  }
  if (task.dquery_sums) rows.store_sums(task.dquery_sums + int64_t{head} * p.Tq, p.Tq, 1);
  rows.store_first(task.dq, b, h, p.Tq);
}

// Tiles of queries that may see any of the own keys, head after head of a group. All threads ask
// for the next one; each looks at one tile of as many at a time.
template <class C>
class QueryTiles {
 public:
  struct Tile {
    int head, m;
    bool stop;
  };

  __device__ __forceinline__ QueryTiles(const Problem& p, Shared<C>& s, int b, int g, KeyRange keys)
      : p_(p), s_(s), keys_(keys), b_(b), num_tiles_(div_up(p.Tq, C::kColumns)) {
    head_ = g * (p.H / p.G), end_head_ = head_ + p.H / p.G;
    // A query before all of these keys sees none of them.
    first_ = p.causal ? max(0, keys.begin - (p.Tk - p.Tq)) / C::kColumns : 0;
    base_ = first_;
  }

  __device__ __forceinline__ Tile next() {
    while (taken_ == count_) {
      if (base_ >= num_tiles_) ++head_, base_ = first_;
      if (head_ >= end_head_) return {head_, 0, true};
      if (base_ < num_tiles_) find();
    }
    return {head_of_found_, s_.found[taken_++], false};
  }

 private:
  __device__ __forceinline__ void find() {
    const int m = base_ + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool sees = false;
    if (m < num_tiles_) {
      const int first = m * C::kColumns;
      const KeyRange seen = keys_of_queries(p_, b_, head_, first, min(first + C::kColumns, p_.Tq));
      sees = !seen.empty() && seen.begin < keys_.end && seen.end > keys_.begin;
    }
    const unsigned votes = __ballot_sync(~0U, sees);
    __syncthreads();  // the tiles found before have been taken
    if (lane == 0) s_.num_found[warp] = __popc(votes);
    __syncthreads();
    int before = 0, count = 0;
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
      if (w < warp) before += s_.num_found[w];
      count += s_.num_found[w];
    }
    if (sees) s_.found[before + __popc(votes & ((1U << lane) - 1))] = m;
    __syncthreads();
    taken_ = 0, count_ = count, head_of_found_ = head_;
    base_ += C::kThreads;
  }

  const Problem& p_;
  Shared<C>& s_;
  const KeyRange keys_;
  const int b_, num_tiles_;
  int first_, base_, head_, end_head_;
  int head_of_found_ = 0, taken_ = 0, count_ = 0;
};

// dk, dv and the sums of dS over queries: one block of threads per block of keys of one key/value
// head.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 2)
    key_kernel(const BackwardTask task, const Records records) {
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<Shared<C>*>(raw);
  const Problem& p = task.problem;
  const int num_blocks = div_up(p.Tk, C::kRows);
  const int pair = blockIdx.x / num_blocks, first = blockIdx.x % num_blocks * C::kRows;
  const int b = pair / p.G, g = pair % p.G, group = p.H / p.G;
  const KeyRange keys = {first, min(first + C::kRows, p.Tk)};
  QueryTiles<C> walk(p, s, b, g, keys);

  const auto load = [&](Tiles<C>& tile, const typename QueryTiles<C>::Tile& at) {
    const int base = at.m * C::kColumns;
    const KeyRange valid = {0, p.Tq};
    load_rows<C::kDim, C::kColumns, C::kThreads>(
        shared_address(tile.first), rows_of(p.q, b, at.head), p.D, base, valid);
    load_rows<C::kDim, C::kColumns, C::kThreads>(
        shared_address(tile.second), rows_of(task.dout, b, at.head), p.D, base, valid);
    const QueryRecord* queries = records.queries + (int64_t{b} * p.H + at.head) * padded(p.Tq);
    load_records<C::kColumns, C::kThreads>(shared_address(tile.records), queries + base);
  };
  load_rows<C::kDim, C::kRows, C::kThreads>(
      shared_address(s.first), rows_of(p.k, b, g), p.D, first, keys);
  if (C::kScores) {
    load_rows<C::kDim, C::kRows, C::kThreads>(
        shared_address(s.second), rows_of(p.v, b, g), p.D, first, keys);
  }
  auto tile = walk.next();
  if (!tile.stop) load(s.tiles[0], tile);
  commit_copies();
  Rows<C> rows(p, first);

  int stage = 0;
  for (int h = g * group; h < (g + 1) * group; ++h) {
    const int64_t head = int64_t{b} * p.H + h;
    rows.start_head(records.keys + head * padded(p.Tk));
    while (!tile.stop && tile.head == h) {
      const auto next = walk.next();
      if (!next.stop) load(s.tiles[stage ^ 1], next);
      commit_copies();
      wait_copies<1>();
      __syncthreads();
      rows.differentiate(s, s.tiles[stage], tile.m * C::kColumns);
      __syncthreads();
      tile = next;
      stage ^= 1;
    }
    if (C::kScores && task.dkey_sums) rows.store_sums(task.dkey_sums + head * p.Tk, p.Tk, -1);
  }
  if (C::kScores) rows.store_first(task.dk, b, g, p.Tk);
  if (C::kWeights) rows.store_second(task.dv, b, g, p.Tk);
}

template <class C>
constexpr auto kernel_of() {
  if constexpr (C::kOwnsKeys) {
    return key_kernel<C>;
  } else {
    return query_kernel<C>;
  }
}

template <class C>
void launch(const BackwardTask& task, const Records& records, cudaStream_t stream) {
  const Problem& p = task.problem;
  constexpr auto kKernel = kernel_of<C>();
  constexpr int kBytes = sizeof(Shared<C>);
  const unsigned blocks =
      C::kOwnsKeys ? p.B * p.G * div_up(p.Tk, C::kRows) : p.B * p.H * div_up(p.Tq, C::kRows);
  if (blocks == 0) return;
  cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  kKernel<<<blocks, C::kThreads, kBytes, stream>>>(task, records);
  REYNARD_CHECK_LAUNCH();
}

template <int kDim, class Scalar>
void launch_all(const BackwardTask& task, const Records& records, cudaStream_t stream) {
  launch<Config<kDim, Scalar, Side::kQueries, true, false>>(task, records, stream);
  if constexpr (kDim < 256) {
    launch<Config<kDim, Scalar, Side::kKeys, true, true>>(task, records, stream);
  } else {
    // Sums of both do not fit into registers.
    launch<Config<kDim, Scalar, Side::kKeys, true, false>>(task, records, stream);
    launch<Config<kDim, Scalar, Side::kKeys, false, true>>(task, records, stream);
  }
}

template <class Scalar>
void launch_dimension(const BackwardTask& task, const Records& records, cudaStream_t stream) {
  const int D = task.problem.D;
  const auto run = D <= 64    ? launch_all<64, Scalar>
                   : D <= 128 ? launch_all<128, Scalar>
                              : launch_all<256, Scalar>;
  run(task, records, stream);
}

}  // namespace

bool takes_backward(const BackwardTask& task) {
  const Problem& p = task.problem;
  return p.D <= 256 && is_tileable(p.q, p.D) && is_tileable(p.k, p.D) && is_tileable(p.v, p.D) &&
         is_tileable(task.dout, p.D);
}

int64_t backward_scratch_bytes(const Problem& problem) {
  return records_bytes(problem);
}

void backward(const BackwardTask& task, void* scratch, cudaStream_t stream) {
  const Records records = records_in(scratch, task.problem);
  make_records(task.problem, task.lse, task.delta, records, stream);
  if (task.problem.q.element == Element::kHalf) {
    launch_dimension<__half>(task, records, stream);
  } else {
    launch_dimension<__nv_bfloat16>(task, records, stream);
  }
}

}  // namespace reynard::attention::cuda::sm80
