// Root-mean-square norms, backward: one block of threads per kBlockRows rows, which sums the
// weight's gradient over them. Rows of common widths stay in registers, one pack of columns per
// thread; whole rows of a residual stream in those of a warp. Any other width goes through shared
// memory.

#include "reynard/ops/cuda/norm_backward_warps.cuh"
#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"
#include "reynard/tensor/cuda_limits.h"
#include "reynard/tensor/error.h"

#include <algorithm>
#include <string>

namespace reynard::ops::cuda {

namespace {

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
  tensor::wait_for_kernel_before();
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

// The sums of a row must fit the `most` bytes that a block can have.
void check_columns(int64_t columns, int64_t groups, int pack, int64_t most) {
  const int64_t floats = most / static_cast<int64_t>(sizeof(float)) - groups;
  const int64_t most_columns = floats * pack / (pack + 1);
  if (columns <= most_columns) return;
  throw Error("rms_norm, backward: rows of " + std::to_string(columns) +
              " columns; must be at most " + std::to_string(most_columns) +
              " on this GPU, whose blocks have " + std::to_string(most) +
              " bytes of shared memory");
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
    check_columns(columns, p.groups, V, tensor::most_shared_bytes());
    cudaFuncSetAttribute(norm_backward_kernel<T, X, V>,
                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared));
  }
  tensor::launch_early(norm_backward_kernel<T, X, V>,
                       blocks_for(rows, kBlockRows),
                       threads,
                       shared,
                       stream,
                       p,
                       rows);
  REYNARD_CHECK_LAUNCH();
}

// A thread's part of one row: n = x / rms, g = dy * weight [* sigmoid(gate)].
struct RowPack {
  Pack<kPack> n{}, g{};
  float inverse = 0;
};

// Loads it, writes the gate's gradient and adds g * n to the weight's.
template <class T, class X>
__device__ RowPack row_pack(const NormBackward& p,
                            int64_t row,
                            const Place& place,
                            const Pack<kPack>& weight,
                            Pack<kPack>& d_weight) {
  const int64_t offset = row * p.groups * p.width + place.column;
  RowPack in;
  in.inverse = p.inverse_rms[row * p.groups + place.group];
  const X* values = static_cast<const X*>(p.sum ? static_cast<const void*>(p.sum) : p.x);
  in.n = load<kPack>(values + offset);
  in.g = load<kPack>(static_cast<const T*>(p.dy) + offset);
#pragma unroll
  for (float& n : in.n.at) n *= in.inverse;
  if (p.gate) {
    const Pack<kPack> gate = load<kPack>(static_cast<const T*>(p.gate) + offset);
    Pack<kPack> d_gate;
#pragma unroll
    for (int v = 0; v < kPack; ++v) {
      const float open = sigmoid(gate.at[v]);
      d_gate.at[v] = in.g.at[v] * in.n.at[v] * weight.at[v] * open * (1.0F - open);
      in.g.at[v] *= open;
    }
    store(static_cast<T*>(p.d_gate) + offset, d_gate);
  }
#pragma unroll
  for (int v = 0; v < kPack; ++v) {
    d_weight.at[v] += in.g.at[v] * in.n.at[v];
    in.g.at[v] *= weight.at[v];
  }
  return in;
}

// Sums over the packs of each group for kRowsAtOnce rows: within a warp by shuffles, over the
// warps of a wide group through shared memory. `turn` alternates between two buffers, so that one
// barrier is enough.
__device__ void sum_groups(float (&sums)[kRowsAtOnce], int64_t packs_per_group, int turn) {
  __shared__ float of_warps[2][kRowsAtOnce][kPackThreads / kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int lanes = static_cast<int>(min(packs_per_group, static_cast<int64_t>(kWarpSize)));
#pragma unroll
  for (float& sum : sums) sum = team_sum(sum, lanes);
  const int warps = static_cast<int>(packs_per_group) / kWarpSize;
  if (warps <= 1) return;
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    if (lane == 0) of_warps[turn][r][warp] = sums[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRowsAtOnce; ++r) {
    sums[r] = 0;
    for (int w = 0; w < warps; ++w) sums[r] += of_warps[turn][r][warp / warps * warps + w];
  }
}

// dx = inverse * (g - n * mean(g * n)) [+ d_sum].
template <class T>
__device__ void write_row(
    const NormBackward& p, int64_t row, const Place& place, const RowPack& in, float sum) {
  const int64_t offset = row * p.groups * p.width + place.column;
  const auto mean = static_cast<float>(static_cast<double>(sum) / static_cast<double>(p.width));
  Pack<kPack> d_sum{}, dx;
  if (p.d_sum) d_sum = load<kPack>(p.d_sum + offset);
#pragma unroll
  for (int v = 0; v < kPack; ++v) {
    dx.at[v] = (in.g.at[v] - in.n.at[v] * mean) * in.inverse + d_sum.at[v];
  }
  store(static_cast<T*>(p.dx) + offset, dx);
  if (p.d_residual) store(p.d_residual + offset, dx);
}

template <class T, class X>
__global__ void __launch_bounds__(kPackThreads)
    norm_backward_packs_kernel(NormBackward p, int64_t rows) {
  tensor::wait_for_kernel_before();
  const int64_t columns = p.groups * p.width;
  const int64_t column = static_cast<int64_t>(threadIdx.x) * kPack;
  const bool has_columns = column < columns;  // the last warp may be larger than the row
  const Place place = place_of(p, has_columns ? column : 0);
  const Pack<kPack> weight = load<kPack>(p.weight + place.weight);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const int64_t last = min(rows, first + kBlockRows);
  Pack<kPack> d_weight{};
  int turn = 0;
  for (int64_t row = first; row < last; row += kRowsAtOnce, turn ^= 1) {
    RowPack in[kRowsAtOnce];
    float sums[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (has_columns && row + r < last) {
        in[r] = row_pack<T, X>(p, row + r, place, weight, d_weight);
      }
      sums[r] = 0;
#pragma unroll
      for (int v = 0; v < kPack; ++v) sums[r] += in[r].g.at[v] * in[r].n.at[v];
    }
    sum_groups(sums, p.width / kPack, turn);
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (has_columns && row + r < last) write_row<T>(p, row + r, place, in[r], sums[r]);
    }
  }
  if (has_columns) store(p.d_weight + blockIdx.x * columns + column, d_weight);
}

// Whether rows fit one block as packs, with groups that are a team of a warp or whole warps.
bool fits_packs(const NormBackward& p, std::initializer_list<const void*> pointers) {
  const int64_t packs = p.width / kPack;
  return vector_width(p.width, kPack, pointers) == kPack && p.groups * packs <= kPackThreads &&
         (packs % kWarpSize == 0 || kWarpSize % packs == 0);
}

template <class T, class X>
void launch_packs(const NormBackward& p, int64_t rows, cudaStream_t stream) {
  const auto warps = blocks_for(p.groups * p.width / kPack, kWarpSize);
  tensor::launch_early(norm_backward_packs_kernel<T, X>,
                       blocks_for(rows, kBlockRows),
                       warps * kWarpSize,
                       0,
                       stream,
                       p,
                       rows);
}

template <class T, class X>
void launch(const NormBackward& p,
            int64_t rows,
            std::initializer_list<const void*> pointers,
            cudaStream_t stream) {
  if (fits_packs(p, pointers)) {
    if (!launched_teams_or_warps<T>(p, rows, stream)) launch_packs<T, X>(p, rows, stream);
    REYNARD_CHECK_LAUNCH();
    return;
  }
  if (vector_width(p.width, 4, pointers) == 4) return launch_backward<T, X, 4>(p, rows, stream);
  launch_backward<T, X, 1>(p, rows, stream);
}

}  // namespace

void norm_backward(const NormBackward& p, Element element, int64_t rows, cudaStream_t stream) {
  const auto pointers = {p.dy,
                         p.x,
                         static_cast<const void*>(p.sum),
                         static_cast<const void*>(p.d_sum),
                         p.gate,
                         static_cast<const void*>(p.weight),
                         static_cast<const void*>(p.dx),
                         static_cast<const void*>(p.d_residual),
                         static_cast<const void*>(p.d_gate),
                         static_cast<const void*>(p.d_weight)};
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    p.sum ? launch<T, float>(p, rows, pointers, stream) : launch<T, T>(p, rows, pointers, stream);
  });
}

}  // namespace reynard::ops::cuda
