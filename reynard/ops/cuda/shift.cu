// The token shift: one warp per token and head.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

constexpr int kWarps = 8;

// Index of the sequence that starts at token t, or -1.
__device__ int64_t sequence_at(const ShiftForward& p, int64_t t) {
  int64_t low = 0, high = p.num_starts;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (p.starts[middle] < t) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < p.num_starts && p.starts[low] == t ? low : -1;
}

// The row before token t of a head in its sequence; null: zero.
template <class T>
__device__ const T* row_before(const ShiftForward& p, int64_t t, int64_t head) {
  const int64_t token_width = p.heads * p.width;
  const int64_t sequence = sequence_at(p, t);
  if (sequence < 0) {
    return t == 0 ? nullptr : static_cast<const T*>(p.x) + (t - 1) * token_width + head * p.width;
  }
  if (!p.previous) return nullptr;
  return static_cast<const T*>(p.previous) + sequence * token_width + head * p.width;
}

template <class T>
__device__ float shift_weight(const ShiftForward& p, int64_t index) {
  return sigmoid(widened(static_cast<const T*>(p.logit)[index]));
}

template <class T, int V>
__global__ void shift_forward_kernel(ShiftForward p, int64_t rows) {
  const int lane = threadIdx.x % kWarpSize;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  if (index >= rows * p.heads) return;
  const int64_t offset = index * p.width;
  const float a = shift_weight<T>(p, index);
  const T* before = row_before<T>(p, index / p.heads, index % p.heads);
  for (int64_t i = lane * V; i < p.width; i += kWarpSize * V) {
    Pack<V> y = load<V>(static_cast<const T*>(p.x) + offset + i);
    Pack<V> earlier{};
    if (before) earlier = load<V>(before + i);
#pragma unroll
    for (int v = 0; v < V; ++v) y.at[v] = (1.0F - a) * y.at[v] + a * earlier.at[v];
    store(static_cast<T*>(p.y) + offset + i, y);
  }
}

// dx_t = (1 - a_t) dy_t + a_{t+1} dy_{t+1} where t + 1 goes on with the sequence.
template <class T, int V>
__global__ void shift_backward_kernel(ShiftBackward p, int64_t rows) {
  const ShiftForward& f = p.forward;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  if (index >= rows * f.heads) return;
  const int64_t t = index / f.heads, head = index % f.heads;
  const int64_t offset = index * f.width;
  const bool goes_on = t + 1 < p.num_tokens && sequence_at(f, t + 1) < 0;
  const float a = shift_weight<T>(f, index);
  const float a_next = goes_on ? shift_weight<T>(f, index + f.heads) : 0.0F;
  const T* dy = static_cast<const T*>(p.dy) + offset;
  const T* before = row_before<T>(f, t, head);
  float products = 0;
  for (int64_t i = lane * V; i < f.width; i += kWarpSize * V) {
    const Pack<V> g = load<V>(dy + i);
    const Pack<V> x = load<V>(static_cast<const T*>(f.x) + offset + i);
    Pack<V> earlier{}, g_next{}, dx;
    if (before) earlier = load<V>(before + i);
    if (goes_on) g_next = load<V>(dy + f.heads * f.width + i);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      products += g.at[v] * (earlier.at[v] - x.at[v]);
      dx.at[v] = (1.0F - a) * g.at[v] + a_next * g_next.at[v];
    }
    store(static_cast<T*>(p.dx) + offset + i, dx);
  }
  products = warp_sum(products);
  if (lane == 0) narrow(products * a * (1.0F - a), static_cast<T*>(p.d_logit)[index]);
}

}  // namespace

void shift_forward(const ShiftForward& p, Element element, int64_t rows, cudaStream_t stream) {
  const int v = vector_width(p.width, kWarpSize, 8, {p.x, p.previous, p.y});
  with_element(element, [&](auto zero) {
    with_width(v, [&](auto width) {
      shift_forward_kernel<decltype(zero), width()>
          <<<blocks_for(rows * p.heads, kWarps), kWarps * kWarpSize, 0, stream>>>(p, rows);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

void shift_backward(const ShiftBackward& p, Element element, int64_t rows, cudaStream_t stream) {
  const ShiftForward& f = p.forward;
  const int v = vector_width(f.width, kWarpSize, 8, {f.x, f.previous, p.dy, p.dx});
  with_element(element, [&](auto zero) {
    with_width(v, [&](auto width) {
      shift_backward_kernel<decltype(zero), width()>
          <<<blocks_for(rows * f.heads, kWarps), kWarps * kWarpSize, 0, stream>>>(p, rows);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::ops::cuda
