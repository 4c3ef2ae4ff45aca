#pragma once
// Root-mean-square norms, backward, of rows whose groups stay in the registers of a team of lanes
// or of a warp.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/row_kernels.h"
#include "reynard/tensor/cuda_early.cuh"

#include <cstdint>

namespace reynard::ops::cuda {

constexpr int kPack = 8;        // columns of a thread: 16 bytes of bf16
constexpr int kRowsAtOnce = 4;  // whose loads are under way together
constexpr int kPackThreads = 512;

// Narrow groups: the packs of a group are a team of lanes.
//
// Places past the end are read elsewhere instead, so that no branch parts the loads.
template <class T>
__global__ void __launch_bounds__(kPackThreads)
    norm_backward_teams_kernel(NormBackward p, int team, double per_column, int64_t rows) {
  tensor::wait_for_kernel_before();
  const int columns = static_cast<int>(p.groups * p.width), width = static_cast<int>(p.width);
  const bool has_columns = static_cast<int>(threadIdx.x) * kPack < columns;
  const int column = has_columns ? static_cast<int>(threadIdx.x) * kPack : 0;
  const int group = column / width;
  const Pack<kPack> weight =
      load<kPack>(p.weight + (p.shared_weight ? column - group * width : column));
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const int64_t last = min(rows, first + kBlockRows);
  Pack<kPack> d_weight{};
  for (int64_t row = first; row < last; row += kRowsAtOnce) {
    Elements<T, kPack> x[kRowsAtOnce], dy[kRowsAtOnce], gate[kRowsAtOnce];
    float inverse[kRowsAtOnce];
    const auto offset = [&](int r) { return min(row + r, last - 1) * columns + column; };
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      x[r] = load_elements<kPack>(static_cast<const T*>(p.x) + offset(r));
      dy[r] = load_elements<kPack>(static_cast<const T*>(p.dy) + offset(r));
      inverse[r] = p.inverse_rms[min(row + r, last - 1) * p.groups + group];
    }
    if (p.gate) {
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        gate[r] = load_elements<kPack>(static_cast<const T*>(p.gate) + offset(r));
      }
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const bool has = has_columns && row + r < last;
      Pack<kPack> n, g, d_gate, dx;
      float sum = 0;
#pragma unroll
      for (int v = 0; v < kPack; ++v) {
        n.at[v] = widened(x[r].at[v]) * inverse[r];
        float own = widened(dy[r].at[v]);
        if (p.gate) {
          const float open = sigmoid(widened(gate[r].at[v]));
          d_gate.at[v] = own * n.at[v] * weight.at[v] * open * (1.0F - open);
          own *= open;
        }
        if (has) d_weight.at[v] += own * n.at[v];
        g.at[v] = own * weight.at[v];
        sum += g.at[v] * n.at[v];
      }
      const auto mean = static_cast<float>(team_sum(sum, team) * per_column);
#pragma unroll
      for (int v = 0; v < kPack; ++v) dx.at[v] = (g.at[v] - n.at[v] * mean) * inverse[r];
      if (!has) continue;
      if (p.gate) store(static_cast<T*>(p.d_gate) + offset(r), d_gate);
      store(static_cast<T*>(p.dx) + offset(r), dx);
    }
  }
  if (has_columns) store(p.d_weight + blockIdx.x * int64_t{columns} + column, d_weight);
}

// Rows of a residual stream, one group each: kPacks packs of each lane of a warp.

constexpr int kWarps = 8;  // of a block, each with every eighth row of it

// Of the warps of a block, halves after halves; the first one ends with the sum.
template <int kPacks>
__device__ void add_up_warps(Pack<kPack> (&sums)[kPacks]) {
  __shared__ Pack<kPack> of_warps[kWarps / 2][kPacks][kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
#pragma unroll
  for (int half = kWarps / 2; half > 0; half /= 2) {
    if (warp >= half && warp < 2 * half) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) of_warps[warp - half][k][lane] = sums[k];
    }
    __syncthreads();
    if (warp < half) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
#pragma unroll
        for (int v = 0; v < kPack; ++v) sums[k].at[v] += of_warps[warp][k][lane].at[v];
      }
    }
    __syncthreads();
  }
}

template <class T, int kPacks>
__global__ void __launch_bounds__(kWarps* kWarpSize)
    norm_backward_warps_kernel(NormBackward p, double per_column, int64_t rows) {
  tensor::wait_for_kernel_before();
  constexpr int kStride = kWarpSize * kPack;  // columns of the packs of a warp
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const int64_t last = min(rows, first + kBlockRows);
  Pack<kPack> d_weight[kPacks] = {};
  for (int64_t row = first + warp; row < last; row += kWarps) {
    const int64_t begin = row * p.width + lane * kPack;
    // All loads of a row are under way together.
    Pack<kPack> n[kPacks], d_sum[kPacks] = {};
    Elements<T, kPack> dy[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      n[k] = load<kPack>(p.sum + begin + k * kStride);
      dy[k] = load_elements<kPack>(static_cast<const T*>(p.dy) + begin + k * kStride);
    }
    const float inverse = p.inverse_rms[row];
    if (p.d_sum) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) d_sum[k] = load<kPack>(p.d_sum + begin + k * kStride);
    }
    Pack<kPack> g[kPacks];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const Pack<kPack> weight = load<kPack>(p.weight + lane * kPack + k * kStride);
#pragma unroll
      for (int v = 0; v < kPack; ++v) {
        const float own = widened(dy[k].at[v]);
        n[k].at[v] *= inverse;
        d_weight[k].at[v] += own * n[k].at[v];
        g[k].at[v] = own * weight.at[v];
        sum += g[k].at[v] * n[k].at[v];
      }
    }
    const auto mean = static_cast<float>(warp_sum(sum) * per_column);
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      Pack<kPack> dx;
#pragma unroll
      for (int v = 0; v < kPack; ++v) {
        dx.at[v] = (g[k].at[v] - n[k].at[v] * mean) * inverse + d_sum[k].at[v];
      }
      store(static_cast<T*>(p.dx) + begin + k * kStride, dx);
      if (p.d_residual) store(p.d_residual + begin + k * kStride, dx);
    }
  }
  add_up_warps(d_weight);
  if (warp > 0) return;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    store(p.d_weight + blockIdx.x * p.width + lane * kPack + k * kStride, d_weight[k]);
  }
}

// Whether one of these two kinds took the launch; rows fit packs.
template <class T>
bool launched_teams_or_warps(const NormBackward& p, int64_t rows, cudaStream_t stream) {
  const int64_t team = p.width / kPack, packs = p.groups * team;
  const double per_column = 1.0 / static_cast<double>(p.width);
  const unsigned blocks = blocks_for(rows, kBlockRows);
  if (!p.sum && team <= kWarpSize) {
    const unsigned threads = blocks_for(packs, kWarpSize) * kWarpSize;
    tensor::launch_early(norm_backward_teams_kernel<T>,
                         blocks,
                         threads,
                         0,
                         stream,
                         p,
                         static_cast<int>(team),
                         per_column,
                         rows);
    return true;
  }
  if (!p.sum || p.groups > 1 || packs % kWarpSize != 0) return false;
  const auto run = [&](auto of_lane) {
    tensor::launch_early(norm_backward_warps_kernel<T, of_lane()>,
                         blocks,
                         kWarps * kWarpSize,
                         0,
                         stream,
                         p,
                         per_column,
                         rows);
    return true;
  };
  if (packs == 1 * kWarpSize) return run(Width<1>{});
  if (packs == 2 * kWarpSize) return run(Width<2>{});
  if (packs == 3 * kWarpSize) return run(Width<3>{});
  if (packs == 4 * kWarpSize) return run(Width<4>{});
  return packs == 6 * kWarpSize && run(Width<6>{});
}

}  // namespace reynard::ops::cuda
