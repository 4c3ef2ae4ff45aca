// Root-mean-square norms, forward. Rows of common widths stay in the registers of a team of lanes,
// whose loads are all under way together; any other width is read twice.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

// One team of lanes per row and group.
template <class T, int V>
__global__ void norm_forward_kernel(NormForward p, Teams teams, int64_t items) {
  tensor::wait_for_kernel_before();
  tensor::let_next_kernel_start();
  const int lane = threadIdx.x % teams.lanes;
  const int64_t item = team_row(teams, items);
  const int64_t offset = item * p.width;
  const float* weight = p.weight + (p.shared_weight ? 0 : item % p.groups * p.width);
  const T* x = static_cast<const T*>(p.x) + offset;
  float squares = 0;
  for (int64_t i = lane * V; i < p.width; i += teams.lanes * V) {
    Pack<V> values = load<V>(x + i);
    if (p.residual) {
      const Pack<V> residual = load<V>(p.residual + offset + i);
#pragma unroll
      for (int v = 0; v < V; ++v) values.at[v] += residual.at[v];
      store(p.sum + offset + i, values);
    }
#pragma unroll
    for (int v = 0; v < V; ++v) squares += values.at[v] * values.at[v];
  }
  // In f64: the backward pass cancels two terms that both carry this rounding.
  const double mean =
      static_cast<double>(team_sum(squares, teams.lanes)) / static_cast<double>(p.width);
  const float inverse = inverse_root(mean + p.eps);
  if (lane == 0) p.inverse_rms[item] = inverse;
  T* y = static_cast<T*>(p.y) + offset;
  for (int64_t i = lane * V; i < p.width; i += teams.lanes * V) {
    Pack<V> values = p.residual ? load<V>(p.sum + offset + i) : load<V>(x + i);
    const Pack<V> w = load<V>(weight + i);
#pragma unroll
    for (int v = 0; v < V; ++v) values.at[v] = values.at[v] * inverse * w.at[v];
    if (p.gate) {
      const Pack<V> gate = load<V>(static_cast<const T*>(p.gate) + offset + i);
#pragma unroll
      for (int v = 0; v < V; ++v) values.at[v] *= sigmoid(gate.at[v]);
    }
    store(y + i, values);
  }
}

constexpr int kPack = 8;  // columns of a lane: 16 bytes of bf16

// One team per group and kRows rows, of which each lane holds kPacks packs: all of them, and the
// lanes of several are a warp. Rows past the end are read at the end instead, so that no branch
// parts the loads.
template <class T, int kPacks, int kRows>
__global__ void __launch_bounds__(Teams::kThreads, kPacks == 1 ? 4 : 2)
    norm_forward_packs_kernel(NormForward p, Teams teams, double per_column, int64_t rows) {
  tensor::wait_for_kernel_before();
  tensor::let_next_kernel_start();
  const int lanes = kPacks == 1 ? teams.lanes : kWarpSize;
  const int lane = threadIdx.x % lanes;
  const int64_t team =
      static_cast<int64_t>(blockIdx.x) * (Teams::kThreads / lanes) + threadIdx.x / lanes;
  const auto [chunk, group] = divided(team, p.groups);
  const int64_t first = chunk * kRows;
  const int64_t begin = (min(first, rows - 1) * p.groups + group) * p.width + lane * kPack;
  const auto offset = [&](int r, int k) {
    const int64_t row = first + r < rows ? begin + r * p.groups * p.width : begin;
    return row + k * kWarpSize * kPack;
  };
  const auto load_all = [&](const void* from, Elements<T, kPack>(&into)[kRows][kPacks]) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) {
        into[r][k] = load_elements<kPack>(static_cast<const T*>(from) + offset(r, k));
      }
    }
  };
  Elements<T, kPack> xs[kRows][kPacks], gates[kRows][kPacks];
  Pack<kPack> values[kRows][kPacks] = {};
  load_all(p.x, xs);
  if (p.gate) load_all(p.gate, gates);
  if (p.residual) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k) values[r][k] = load<kPack>(p.residual + offset(r, k));
    }
  }
  const float* weight = p.weight + (p.shared_weight ? 0 : group * p.width) + lane * kPack;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
#pragma unroll
      for (int v = 0; v < kPack; ++v) {
        values[r][k].at[v] += widened(xs[r][k].at[v]);
        squares += values[r][k].at[v] * values[r][k].at[v];
      }
    }
    const double mean = static_cast<double>(team_sum(squares, lanes)) * per_column;
    const float inverse = inverse_root(mean + p.eps);
    if (first + r >= rows) continue;
    if (lane == 0) p.inverse_rms[(first + r) * p.groups + group] = inverse;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const Pack<kPack> w = load<kPack>(weight + k * kWarpSize * kPack);
      Pack<kPack> y;
#pragma unroll
      for (int v = 0; v < kPack; ++v) y.at[v] = values[r][k].at[v] * inverse * w.at[v];
      if (p.gate) {
#pragma unroll
        for (int v = 0; v < kPack; ++v) y.at[v] *= sigmoid(widened(gates[r][k].at[v]));
      }
      if (p.residual) store(p.sum + offset(r, k), values[r][k]);
      store(static_cast<T*>(p.y) + offset(r, k), y);
    }
  }
}

// Whether a kernel for rows in registers took the launch.
template <class T>
bool launched_packs(const NormForward& p, Teams teams, int64_t rows, cudaStream_t stream) {
  const auto run = [&](auto packs, auto rows_at_once) {
    const int64_t count = (rows + rows_at_once() - 1) / rows_at_once() * p.groups;
    tensor::launch_early(norm_forward_packs_kernel<T, packs(), rows_at_once()>,
                         blocks_for(count, teams.per_block()),
                         Teams::kThreads,
                         0,
                         stream,
                         p,
                         teams,
                         1.0 / static_cast<double>(p.width),
                         rows);
    return true;
  };
  if (teams.vector != kPack || p.width % (teams.lanes * kPack) != 0) return false;
  const int64_t packs = p.width / (teams.lanes * kPack);
  if (packs == 1) return run(Width<1>{}, Width<2>{});
  if (packs == 2) return run(Width<2>{}, Width<1>{});
  if (packs == 3) return run(Width<3>{}, Width<1>{});
  if (packs == 4) return run(Width<4>{}, Width<1>{});
  return packs == 6 && run(Width<6>{}, Width<1>{});
}

}  // namespace

void norm_forward(const NormForward& p, Element element, int64_t rows, cudaStream_t stream) {
  const int64_t items = rows * p.groups;
  const Teams teams = teams_for(p.width, {p.x, p.residual, p.gate, p.weight, p.y, p.sum});
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    if (launched_packs<T>(p, teams, rows, stream)) return;
    with_width(teams.vector, [&](auto width) {
      tensor::launch_early(norm_forward_kernel<T, width()>,
                           blocks_for(items, teams.per_block()),
                           Teams::kThreads,
                           0,
                           stream,
                           p,
                           teams,
                           items);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::ops::cuda
