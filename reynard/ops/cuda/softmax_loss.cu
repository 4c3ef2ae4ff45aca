// The loss of each row of logits and, in their place, its gradient: one block of threads per row,
// which reads the row once for its largest logit and its sum together and once for the gradient.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarpSize;

// sum of exp(x - peak) over what was seen.
struct Softmax {
  float peak, sum;
};

__device__ Softmax merged(Softmax a, Softmax b) {
  const float peak = fmaxf(a.peak, b.peak);
  if (peak == -INFINITY) return {peak, a.sum + b.sum};  // 0, or NaN where one was seen
  return {peak, a.sum * expf(a.peak - peak) + b.sum * expf(b.peak - peak)};
}

__device__ Softmax warp_merged(Softmax own) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const Softmax other = {__shfl_xor_sync(0xffffffffU, own.peak, distance),
                           __shfl_xor_sync(0xffffffffU, own.sum, distance)};
    own = merged(own, other);
  }
  return own;
}

template <int V>
__device__ Softmax with_pack(Softmax seen, const Pack<V>& x) {
  float peak = x.at[0];
#pragma unroll
  for (int v = 1; v < V; ++v) peak = fmaxf(peak, x.at[v]);
  Softmax here = {peak, 0};
  const float shift = peak == -INFINITY ? 0 : peak;  // -inf - -inf would be NaN
#pragma unroll
  for (int v = 0; v < V; ++v) here.sum += expf(x.at[v] - shift);
  return merged(seen, here);
}

// Calls one(i) and many(i) so that every index of the row comes once, most of them as packs of V:
// rows of an odd vocabulary begin at any address.
template <int V, class T, class One, class Many>
__device__ void for_row(const T* row, int64_t size, const One& one, const Many& many) {
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  const int64_t head =
      min(size, misaligned == 0 ? 0 : static_cast<int64_t>(16 / sizeof(T)) - misaligned);
  const int64_t packs = (size - head) / V;
  const int64_t tail = head + packs * V;
  if (threadIdx.x < head) one(threadIdx.x);
  for (int64_t pack = threadIdx.x; pack < packs; pack += kThreads) many(head + pack * V);
  if (tail + threadIdx.x < size) one(tail + threadIdx.x);
}

template <class T>
__global__ void softmax_loss_kernel(SoftmaxLossRows p) {
  tensor::wait_for_kernel_before();
  constexpr int V = 16 / sizeof(T);
  __shared__ Softmax warps[kWarps];
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  T* x = static_cast<T*>(p.logits) + row * p.stride;
  Softmax seen = {-INFINITY, 0};
  for_row<V>(
      x,
      p.vocabulary,
      [&](int64_t i) { seen = with_pack(seen, load<1>(x + i)); },
      [&](int64_t i) { seen = with_pack(seen, load<V>(x + i)); });
  seen = warp_merged(seen);
  if (lane == 0) warps[warp] = seen;
  __syncthreads();
  seen = warp_merged(lane < kWarps ? warps[lane] : Softmax{-INFINITY, 0});
  const float logit = widened(x[p.targets[row]]);
  if (threadIdx.x == 0) p.loss[row] = logf(seen.sum) - (logit - seen.peak);
  if (!p.gradient) return;
  __syncthreads();  // the target's logit is read before it is overwritten
  const float weight = p.weights[row];
  const float scale = weight / seen.sum;
  const int64_t target = p.targets[row];
  const float target_gradient = weight * (expf(logit - seen.peak) / seen.sum - 1.0F);
  const auto gradient = [&](float value, int64_t i) {
    return i == target ? target_gradient : expf(value - seen.peak) * scale;
  };
  const auto write = [&](auto pack, int64_t i) {
#pragma unroll
    for (int v = 0; v < static_cast<int>(sizeof(pack.at) / sizeof(float)); ++v) {
      pack.at[v] = gradient(pack.at[v], i + v);
    }
    store(x + i, pack);
  };
  for_row<V>(
      x,
      p.vocabulary,
      [&](int64_t i) { write(load<1>(x + i), i); },
      [&](int64_t i) { write(load<V>(x + i), i); });
}

}  // namespace

void softmax_loss(const SoftmaxLossRows& p, Element element, int64_t rows, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    tensor::launch_early(
        softmax_loss_kernel<decltype(zero)>, static_cast<unsigned>(rows), kThreads, 0, stream, p);
  });
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::ops::cuda
