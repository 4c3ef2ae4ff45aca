// Root-mean-square norms: forward with one warp per row and group, backward with one block of
// threads per kBlockRows rows, which keeps its sums of the weight's gradient in shared memory.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_launch.h"

#include <algorithm>

namespace reynard::ops::cuda {

namespace {

constexpr int kForwardWarps = 8;

template <class T, int V>
__global__ void norm_forward_kernel(NormForward p, int64_t items) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kForwardWarps + threadIdx.x / kWarpSize;
  if (item >= items) return;
  const int64_t offset = item * p.width;
  const float* weight = p.weight + (p.shared_weight ? 0 : item % p.groups * p.width);
  const T* x = static_cast<const T*>(p.x) + offset;
  float squares = 0;
  for (int64_t i = lane * V; i < p.width; i += kWarpSize * V) {
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
  const double mean = static_cast<double>(warp_sum(squares)) / static_cast<double>(p.width);
  const auto inverse = static_cast<float>(1.0 / sqrt(mean + p.eps));
  if (lane == 0) p.inverse_rms[item] = inverse;
  T* y = static_cast<T*>(p.y) + offset;
  for (int64_t i = lane * V; i < p.width; i += kWarpSize * V) {
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

// Where a pack of V columns stands: its group, and its place in the weight.
struct Place {
  int64_t column, group, weight;
};
__device__ Place place_of(const NormBackward& p, int64_t column) {
  const int64_t group = column / p.width;
  return {column, group, p.shared_weight ? column - group * p.width : column};
}

// The sum of one pack over g * weight * n, with g * n added to the sums of the weight's gradient.
template <class T, class X, int V>
__device__ float add_pack(const NormBackward& p, int64_t row, const Place& place, float* d_weight) {
  const int64_t offset = row * p.groups * p.width + place.column;
  const float inverse = p.inverse_rms[row * p.groups + place.group];
  const X* values = static_cast<const X*>(p.sum ? static_cast<const void*>(p.sum) : p.x);
  const Pack<V> x = load<V>(values + offset);
  const Pack<V> weight = load<V>(p.weight + place.weight);
  Pack<V> g = load<V>(static_cast<const T*>(p.dy) + offset);
  if (p.gate) {
    const Pack<V> gate = load<V>(static_cast<const T*>(p.gate) + offset);
    Pack<V> d_gate;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const float open = sigmoid(gate.at[v]);
      d_gate.at[v] = g.at[v] * (x.at[v] * inverse) * weight.at[v] * open * (1.0F - open);
      g.at[v] *= open;
    }
    store(static_cast<T*>(p.d_gate) + offset, d_gate);
  }
  float products = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float n = x.at[v] * inverse;
    d_weight[place.column + v] += g.at[v] * n;
    products += g.at[v] * weight.at[v] * n;
  }
  return products;
}

// dx = inverse * (g - n * mean(g * n)), g = dy * weight [* sigmoid(gate)].
template <class T, class X, int V>
__device__ void write_pack(const NormBackward& p, int64_t row, const Place& place, float mean) {
  const int64_t offset = row * p.groups * p.width + place.column;
  const float inverse = p.inverse_rms[row * p.groups + place.group];
  const X* values = static_cast<const X*>(p.sum ? static_cast<const void*>(p.sum) : p.x);
  const Pack<V> x = load<V>(values + offset);
  const Pack<V> weight = load<V>(p.weight + place.weight);
  const Pack<V> dy = load<V>(static_cast<const T*>(p.dy) + offset);
  Pack<V> gate{}, d_sum{}, dx;
  if (p.gate) gate = load<V>(static_cast<const T*>(p.gate) + offset);
  if (p.d_sum) d_sum = load<V>(p.d_sum + offset);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    float g = dy.at[v] * weight.at[v];
    if (p.gate) g *= sigmoid(gate.at[v]);
    dx.at[v] = (g - x.at[v] * inverse * mean) * inverse + d_sum.at[v];
  }
  store(static_cast<T*>(p.dx) + offset, dx);
  if (p.d_residual) store(p.d_residual + offset, dx);
}

template <class T, class X, int V>
__global__ void norm_backward_kernel(NormBackward p, int64_t rows) {
  const int64_t columns = p.groups * p.width;
  const int64_t num_packs = columns / V;
  extern __shared__ float shared[];
  float* d_weight = shared;              // (columns)
  float* products = d_weight + columns;  // (num_packs)
  float* means = products + num_packs;   // (groups)
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize, num_warps = blockDim.x / kWarpSize;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) d_weight[c] = 0;
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const int64_t last = min(rows, first + kBlockRows);
  const int64_t packs_per_group = p.width / V;
  for (int64_t row = first; row < last; ++row) {
    for (int64_t pack = threadIdx.x; pack < num_packs; pack += blockDim.x) {
      products[pack] = add_pack<T, X, V>(p, row, place_of(p, pack * V), d_weight);
    }
    __syncthreads();
    for (int64_t group = warp; group < p.groups; group += num_warps) {
      const float* of_group = products + group * packs_per_group;
      float sum = 0;
      for (int64_t i = lane; i < packs_per_group; i += kWarpSize) sum += of_group[i];
      sum = warp_sum(sum);
      if (lane == 0) {
        means[group] = static_cast<float>(static_cast<double>(sum) / static_cast<double>(p.width));
      }
    }
    __syncthreads();
    for (int64_t pack = threadIdx.x; pack < num_packs; pack += blockDim.x) {
      const Place place = place_of(p, pack * V);
      write_pack<T, X, V>(p, row, place, means[place.group]);
    }
  }
  __syncthreads();
  float* sums = p.d_weight + blockIdx.x * columns;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) sums[c] = d_weight[c];
}

template <class T, class X, int V>
void launch_backward(const NormBackward& p, int64_t rows, cudaStream_t stream) {
  constexpr int kMostThreads = 512;
  constexpr size_t kSharedWithoutAsking = 48 << 10;
  const int64_t columns = p.groups * p.width;
  const int64_t num_packs = columns / V;
  const int64_t wanted = (num_packs + kWarpSize - 1) / kWarpSize * kWarpSize;
  const auto threads = static_cast<unsigned>(std::min<int64_t>(kMostThreads, wanted));
  const size_t shared = sizeof(float) * static_cast<size_t>(columns + num_packs + p.groups);
  if (shared > kSharedWithoutAsking) {
    cudaFuncSetAttribute(norm_backward_kernel<T, X, V>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared));
  }
  norm_backward_kernel<T, X, V><<<blocks_for(rows, kBlockRows), threads, shared, stream>>>(p, rows);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace

void norm_forward(const NormForward& p, Element element, int64_t rows, cudaStream_t stream) {
  const int64_t items = rows * p.groups;
  const int v =
      vector_width(p.width, kWarpSize, 8, {p.x, p.residual, p.gate, p.weight, p.y, p.sum});
  with_element(element, [&](auto zero) {
    with_width(v, [&](auto width) {
      norm_forward_kernel<decltype(zero), width()>
          <<<blocks_for(items, kForwardWarps), kForwardWarps * kWarpSize, 0, stream>>>(p, items);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

void norm_backward(const NormBackward& p, Element element, int64_t rows, cudaStream_t stream) {
  const auto pointers = {p.dy,
                         p.x,
                         static_cast<const void*>(p.sum),
                         static_cast<const void*>(p.d_sum),
                         p.gate,
                         static_cast<const void*>(p.weight),
                         static_cast<const void*>(p.dx),
                         static_cast<const void*>(p.d_residual),
                         static_cast<const void*>(p.d_gate)};
  const bool wide = vector_width(p.width, 1, 4, pointers) == 4;  // 4 columns of a thread, or 1
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    if (p.sum) {
      wide ? launch_backward<T, float, 4>(p, rows, stream)
           : launch_backward<T, float, 1>(p, rows, stream);
    } else {
      wide ? launch_backward<T, T, 4>(p, rows, stream) : launch_backward<T, T, 1>(p, rows, stream);
    }
  });
}

}  // namespace reynard::ops::cuda
