#include "reynard/attention/cuda/simt.h"
#include "reynard/attention/cuda/simt_tile.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <cmath>

namespace reynard::attention::cuda::simt {

namespace {

template <int kDim>
struct ForwardShared {
  float q[Tile<kDim>::kValues], k[Tile<kDim>::kValues], v[Tile<kDim>::kValues];
  float weights[Tile<kDim>::kScores];
};

// One block of threads per query block of one head; key blocks from the first to the last.
template <int kDim, bool kWithValues>
__global__ void __launch_bounds__(kThreads) forward_kernel(const ForwardTask task) {
  using T = Tile<kDim>;
  constexpr int kOwn = T::kRowsPerThread;
  extern __shared__ char raw[];
  auto& s = *reinterpret_cast<ForwardShared<kDim>*>(raw);
  const Problem& p = task.problem;
  const int num_blocks = div_up(p.Tq, T::kRows);
  const int head = blockIdx.x / num_blocks, m = num_blocks - 1 - blockIdx.x % num_blocks;
  const int b = head / p.H, h = head % p.H, g = h / (p.H / p.G);
  const int first = m * T::kRows, last = min(first + T::kRows, p.Tq);
  const Place place = own_place();
  const auto [y, x] = place;
  const KeyRange keys = keys_of_queries(p, b, h, first, last);
  const float scale2 = static_cast<float>(p.scale * kLog2E);

  KeyRange visible[kOwn];
  double query_sum[kOwn];
  float largest[kOwn];
  LongSum total[kOwn];
  OwnSums<kDim> out;
  for (int a = 0; a < kOwn; ++a) {
    const int i = first + y + kSide * a;
    if (i < last) visible[a] = keys_of_query(p, b, h, i);
    query_sum[a] = i < last ? sum_at(p.query_sums, int64_t{head} * p.Tq + i) : 0;
    largest[a] = -INFINITY;
  }
  load_tile<kDim>(s.q, rows_of(p.q, b, h), p.D, first, {first, last});

  for (int n = keys.begin / T::kRows; n * T::kRows < keys.end; ++n) {
    const int base = n * T::kRows;
    __syncthreads();
    load_tile<kDim>(s.k, rows_of(p.k, b, g), p.D, base, keys);
    if (kWithValues) load_tile<kDim>(s.v, rows_of(p.v, b, g), p.D, base, keys);
    __syncthreads();
    float score[kOwn][kOwn];
    row_products<kDim>(s.q, s.k, place, score);
    for (int c = 0; c < kOwn; ++c) {
      const int j = base + x + kSide * c;
      const double key_sum = j < p.Tk ? sum_at(p.key_sums, int64_t{head} * p.Tk + j) : 0;
      for (int a = 0; a < kOwn; ++a) {
        score[a][c] = visible[a].holds(j)
                          ? fmaf(score[a][c], scale2, bias_between(query_sum[a], key_sum))
                          : -INFINITY;
      }
    }
    for (int a = 0; a < kOwn; ++a) {
      float top = largest[a];
      for (int c = 0; c < kOwn; ++c) top = fmaxf(top, score[a][c]);
      top = over_row(top, [](float u, float w) { return fmaxf(u, w); });
      const float shift = top == -INFINITY ? 0 : top;  // a row that sees nothing yet
      const float keep = exp2f(largest[a] - shift);
      largest[a] = top;
      total[a].scale(keep);
      for (int c = 0; c < T::kDimsPerThread; ++c) out[a][c].scale(keep);
      float weights = 0;
      for (int c = 0; c < kOwn; ++c) {
        const float weight = exp2f(score[a][c] - shift);
        weights += weight;
        s.weights[(y + kSide * a) * T::kScoreStride + x + kSide * c] = weight;
      }
      total[a].add(weights);
    }
    if (kWithValues) {
      __syncthreads();
      add_weighted_rows<kDim>(
          [&](int row, int j) { return s.weights[row * T::kScoreStride + j]; }, s.v, place, out);
    }
  }

  for (int a = 0; a < kOwn; ++a) {
    const int i = first + y + kSide * a;
    const float sum = over_row(total[a].value(), [](float u, float w) { return u + w; });
    if (i >= last) continue;
    if (x == 0) {
      task.lse[int64_t{head} * p.Tq + i] =
          sum == 0 ? -INFINITY : largest[a] * static_cast<float>(kLn2) + logf(sum);  // NaN stays
    }
    if (!kWithValues) continue;
    const int64_t base = b * task.out.batch + int64_t{i} * task.out.time + h * task.out.head;
    for (int c = 0; c < T::kDimsPerThread; ++c) {
      const int d = x + kSide * c;
      if (d < p.D) store_value(task.out, base + d, sum == 0 ? 0 : out[a][c].value() / sum);
    }
  }
}

template <int kDim, bool kWithValues>
void launch(const ForwardTask& task, cudaStream_t stream) {
  const Problem& p = task.problem;
  constexpr int kBytes = sizeof(ForwardShared<kDim>);
  cudaFuncSetAttribute(
      forward_kernel<kDim, kWithValues>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const unsigned blocks = p.B * p.H * div_up(p.Tq, Tile<kDim>::kRows);
  forward_kernel<kDim, kWithValues><<<blocks, kThreads, kBytes, stream>>>(task);
  REYNARD_CHECK_LAUNCH();
}

template <int kDim>
void launch_either(const ForwardTask& task, cudaStream_t stream) {
  if (task.out.data) {
    launch<kDim, true>(task, stream);
  } else {
    launch<kDim, false>(task, stream);
  }
}

}  // namespace

void forward(const ForwardTask& task, cudaStream_t stream) {
  if (task.problem.D <= 64) {
    launch_either<64>(task, stream);
  } else if (task.problem.D <= 128) {
    launch_either<128>(task, stream);
  } else {
    launch_either<256>(task, stream);
  }
}

}  // namespace reynard::attention::cuda::simt
