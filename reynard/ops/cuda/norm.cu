// Root-mean-square norms, forward: one team of lanes per row and group.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

template <class T, int V>
__global__ void norm_forward_kernel(NormForward p, Teams teams, int64_t items) {
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
  const auto inverse = static_cast<float>(1.0 / sqrt(mean + p.eps));
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

}  // namespace

void norm_forward(const NormForward& p, Element element, int64_t rows, cudaStream_t stream) {
  const int64_t items = rows * p.groups;
  const Teams teams = teams_for(p.width, {p.x, p.residual, p.gate, p.weight, p.y, p.sum});
  with_element(element, [&](auto zero) {
    with_width(teams.vector, [&](auto width) {
      norm_forward_kernel<decltype(zero), width()>
          <<<blocks_for(items, teams.per_block()), Teams::kThreads, 0, stream>>>(p, teams, items);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::ops::cuda
