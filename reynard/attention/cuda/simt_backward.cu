#include "reynard/attention/cuda/simt.h"
#include "reynard/attention/cuda/simt_tile.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::attention::cuda::simt {

namespace {

template <int kDim>
struct BackwardShared {
  using T = Tile<kDim>;
  float q[T::kValues], dout[T::kValues], k[T::kValues], v[T::kValues];
  float weights[T::kScores];  // P, [query][key]
  float dscores[T::kScores];  // dS, likewise
};

// Limits and terms of the query rows that a thread owns in one tile.
template <int kOwn>
struct QueryRows {
  KeyRange visible[kOwn];
  double sum[kOwn];  // of the gates, minus lse
  float delta[kOwn];

  __device__ void load(const BackwardTask& task, int b, int h, int first, int last, int y) {
    const Problem& p = task.problem;
    const int64_t row = (int64_t{b} * p.H + h) * p.Tq;
    for (int a = 0; a < kOwn; ++a) {
      const int i = first + y + kSide * a;
      visible[a] = {};
      sum[a] = delta[a] = 0;
      if (i >= last) continue;
      visible[a] = keys_of_query(p, b, h, i);
      sum[a] = sum_at(p.query_sums, row + i) - task.lse[row + i];
      delta[a] = static_cast<float>(task.delta[row + i]);
    }
  }
};

// The keys of the columns that a thread owns in one tile, and their sums of the gates.
template <int kOwn>
struct KeyColumns {
  int key[kOwn];
  double sum[kOwn];

  __device__ void load(const Problem& p, int64_t head, int base, int x) {
    for (int c = 0; c < kOwn; ++c) {
      key[c] = base + x + kSide * c;
      sum[c] = key[c] < p.Tk ? sum_at(p.key_sums, head * p.Tk + key[c]) : 0;
    }
  }
};

// P and dS of a tile into shared memory; body(a, c, dS) sees each value that the thread owns.
template <int kDim, class Body>
__device__ void differentiate(BackwardShared<kDim>& s,
                              const QueryRows<Tile<kDim>::kRowsPerThread>& rows,
                              const KeyColumns<Tile<kDim>::kRowsPerThread>& columns,
                              Place place,
                              float scale2,
                              const Body& body) {
  using T = Tile<kDim>;
  constexpr int kOwn = T::kRowsPerThread;
  const auto [y, x] = place;
  float score[kOwn][kOwn], dweight[kOwn][kOwn];
  row_products<kDim>(s.q, s.k, place, score);
  row_products<kDim>(s.dout, s.v, place, dweight);
  for (int a = 0; a < kOwn; ++a) {
    for (int c = 0; c < kOwn; ++c) {
      const bool seen = rows.visible[a].holds(columns.key[c]);
      const float logit = fmaf(score[a][c], scale2, bias_between(rows.sum[a], columns.sum[c]));
      const float weight = seen ? exp2f(logit) : 0;
      const float dscore = seen ? weight * (dweight[a][c] - rows.delta[a]) : 0;
      const int index = (y + kSide * a) * T::kScoreStride + x + kSide * c;
      s.weights[index] = weight;
      s.dscores[index] = dscore;
      body(a, c, dscore);
    }
  }
}

// dq and the row sums of dS: one block of threads per query block of one head.
template <int kDim>
__global__ void __launch_bounds__(kThreads) query_kernel(const BackwardTask task) {
  using T = Tile<kDim>;
  constexpr int kOwn = T::kRowsPerThread;
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<BackwardShared<kDim>*>(raw);
  const Problem& p = task.problem;
  const int num_blocks = div_up(p.Tq, T::kRows);
  const int head = blockIdx.x / num_blocks, m = num_blocks - 1 - blockIdx.x % num_blocks;
  const int b = head / p.H, h = head % p.H, g = h / (p.H / p.G);
  const int first = m * T::kRows, last = min(first + T::kRows, p.Tq);
  const Place place = own_place();
  const auto [y, x] = place;
  const KeyRange keys = keys_of_queries(p, b, h, first, last);
  const int64_t query_row = int64_t{head} * p.Tq;
  const float scale2 = static_cast<float>(p.scale * kLog2E);

  QueryRows<kOwn> rows;
  rows.load(task, b, h, first, last, y);
  load_tile<kDim>(s.q, rows_of(p.q, b, h), p.D, first, {first, last});
  load_tile<kDim>(s.dout, rows_of(task.dout, b, h), p.D, first, {first, last});
  OwnSums<kDim> dq;
  double sums[kOwn] = {};
  for (int n = keys.begin / T::kRows; n * T::kRows < keys.end; ++n) {
    const int base = n * T::kRows;
    __syncthreads();
    load_tile<kDim>(s.k, rows_of(p.k, b, g), p.D, base, keys);
    load_tile<kDim>(s.v, rows_of(p.v, b, g), p.D, base, keys);
    KeyColumns<kOwn> columns;
    columns.load(p, head, base, x);
    __syncthreads();
    differentiate<kDim>(
        s, rows, columns, place, scale2, [&](int a, int, float ds) { sums[a] += ds; });
    __syncthreads();
    add_weighted_rows<kDim>(
        [&](int row, int j) { return s.dscores[row * T::kScoreStride + j]; }, s.k, place, dq);
  }

  for (int a = 0; a < kOwn; ++a) {
    const int i = first + y + kSide * a;
    const double sum = over_row(sums[a], [](double u, double w) { return u + w; });
    if (i >= last) continue;
    if (x == 0 && task.dquery_sums) task.dquery_sums[query_row + i] = sum;
    const int64_t base = b * task.dq.batch + int64_t{i} * task.dq.time + h * task.dq.head;
    for (int c = 0; c < T::kDimsPerThread; ++c) {
      const int d = x + kSide * c;
      if (d < p.D) store_value(task.dq, base + d, dq[a][c].value() * p.scale);
    }
  }
}

// Column sums of dS of one head: over the 16 threads that share a column, through shared memory.
template <int kDim>
__device__ void store_key_sums(BackwardShared<kDim>& s,
                               const BackwardTask& task,
                               int64_t head,
                               int base,
                               Place place,
                               const double (&sums)[Tile<kDim>::kRowsPerThread]) {
  using T = Tile<kDim>;
  const auto [y, x] = place;
  // The tiles of P and dS are free here, and together large enough.
  static_assert(2 * T::kScores * sizeof(float) >= kSide * T::kRows * sizeof(double) + 8);
  const auto address = (reinterpret_cast<uintptr_t>(s.weights) + 7) / 8 * 8;
  auto* columns = reinterpret_cast<double*>(address);
  __syncthreads();
  for (int c = 0; c < T::kRowsPerThread; ++c) columns[y * T::kRows + x + kSide * c] = sums[c];
  __syncthreads();
  const int j = threadIdx.x;
  if (j < T::kRows && base + j < task.problem.Tk) {
    double total = 0;
    for (int row = 0; row < kSide; ++row) total += columns[row * T::kRows + j];
    task.dkey_sums[head * task.problem.Tk + base + j] = -total;
  }
}

// dk, dv and the column sums of dS: one block of threads per key block of one key/value head.
template <int kDim>
__global__ void __launch_bounds__(kThreads) key_kernel(const BackwardTask task) {
  using T = Tile<kDim>;
  constexpr int kOwn = T::kRowsPerThread;
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<BackwardShared<kDim>*>(raw);
  const Problem& p = task.problem;
  const int num_key_blocks = div_up(p.Tk, T::kRows), num_query_blocks = div_up(p.Tq, T::kRows);
  const int pair = blockIdx.x / num_key_blocks, n = blockIdx.x % num_key_blocks;
  const int b = pair / p.G, g = pair % p.G, group = p.H / p.G;
  const int base = n * T::kRows, end = min(base + T::kRows, p.Tk);
  const Place place = own_place();
  const auto [y, x] = place;
  const float scale2 = static_cast<float>(p.scale * kLog2E);
  // Keys that no query reads are zeros here: they may hold anything.
  OwnSums<kDim> dk, dv;

  for (int h = g * group; h < (g + 1) * group; ++h) {
    const int64_t head = int64_t{b} * p.H + h;
    double sums[kOwn] = {};
    const int first_block = p.causal ? max(0, base - (p.Tk - p.Tq)) / T::kRows : 0;
    for (int m = first_block; m < num_query_blocks; ++m) {
      const int first = m * T::kRows, last = min(first + T::kRows, p.Tq);
      const KeyRange keys = keys_of_queries(p, b, h, first, last);
      if (keys.empty() || keys.begin >= end || keys.end <= base) continue;
      __syncthreads();
      load_tile<kDim>(s.k, rows_of(p.k, b, g), p.D, base, keys);
      load_tile<kDim>(s.v, rows_of(p.v, b, g), p.D, base, keys);
      load_tile<kDim>(s.q, rows_of(p.q, b, h), p.D, first, {first, last});
      load_tile<kDim>(s.dout, rows_of(task.dout, b, h), p.D, first, {first, last});
      QueryRows<kOwn> rows;
      rows.load(task, b, h, first, last, y);
      KeyColumns<kOwn> columns;
      columns.load(p, head, base, x);
      __syncthreads();
      differentiate<kDim>(
          s, rows, columns, place, scale2, [&](int, int c, float ds) { sums[c] += ds; });
      __syncthreads();
      add_weighted_rows<kDim>(
          [&](int row, int i) { return s.weights[i * T::kScoreStride + row]; }, s.dout, place, dv);
      add_weighted_rows<kDim>(
          [&](int row, int i) { return s.dscores[i * T::kScoreStride + row]; }, s.q, place, dk);
    }
    if (task.dkey_sums) store_key_sums<kDim>(s, task, head, base, place, sums);
  }

  for (int a = 0; a < kOwn; ++a) {
    const int j = base + y + kSide * a;
    if (j >= end) continue;
    for (int c = 0; c < T::kDimsPerThread; ++c) {
      const int d = x + kSide * c;
      if (d >= p.D) continue;
      store_value(task.dk,
                  b * task.dk.batch + int64_t{j} * task.dk.time + g * task.dk.head + d,
                  dk[a][c].value() * p.scale);
      store_value(task.dv,
                  b * task.dv.batch + int64_t{j} * task.dv.time + g * task.dv.head + d,
                  dv[a][c].value());
    }
  }
}

template <int kDim>
void launch(const BackwardTask& task, cudaStream_t stream) {
  const Problem& p = task.problem;
  constexpr int kBytes = sizeof(BackwardShared<kDim>);
  constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaFuncSetAttribute(query_kernel<kDim>, kAttribute, kBytes);
  cudaFuncSetAttribute(key_kernel<kDim>, kAttribute, kBytes);
  const unsigned query_blocks = p.B * p.H * div_up(p.Tq, Tile<kDim>::kRows);
  query_kernel<kDim><<<query_blocks, kThreads, kBytes, stream>>>(task);
  REYNARD_CHECK_LAUNCH();
  const unsigned key_blocks = p.B * p.G * div_up(p.Tk, Tile<kDim>::kRows);
  if (key_blocks == 0) return;
  key_kernel<kDim><<<key_blocks, kThreads, kBytes, stream>>>(task);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace

void backward(const BackwardTask& task, cudaStream_t stream) {
  if (task.problem.D <= 64) {
    launch<64>(task, stream);
  } else if (task.problem.D <= 128) {
    launch<128>(task, stream);
  } else {
    launch<256>(task, stream);
  }
}

}  // namespace reynard::attention::cuda::simt
