// AdamW: several tensors per launch, four neighbouring elements per thread at a time, each read and
// written once.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunk = 16 * kThreads;  // elements of a block

// Travels as the kernel's argument, of which there may be 4 KiB.
struct Batch {
  static constexpr int kMost = 40;
  AdamWTensor tensors[kMost];
  unsigned first_block[kMost];  // of each tensor
  int count = 0;
  const float* gradient_scale = nullptr;
};

template <class T, int V>
__device__ void step_pack(const AdamWTensor& p, float scale, int64_t i) {
  const Pack<V> gradient = load<V>(p.gradient + i);
  Pack<V> value = load<V>(p.value + i), m = load<V>(p.exp_avg + i), s = load<V>(p.exp_avg_sq + i);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float g = gradient.at[v] * scale;
    m.at[v] += (1.0F - p.beta1) * (g - m.at[v]);
    s.at[v] = p.beta2 * s.at[v] + (1.0F - p.beta2) * g * g;
    const float root = sqrtf(s.at[v]) * p.root_scale + p.epsilon;
    value.at[v] = p.kept * value.at[v] - p.rate * m.at[v] / root;
  }
  store(p.value + i, value);
  store(p.exp_avg + i, m);
  store(p.exp_avg_sq + i, s);
  if (p.compute) store(static_cast<T*>(p.compute) + i, value);
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ Batch batch) {
  tensor::wait_for_kernel_before();
  const float scale = *batch.gradient_scale;
  if (!isfinite(scale)) return;
  int low = 0, high = batch.count;  // the last tensor that begins at this block or before
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (batch.first_block[middle] <= blockIdx.x ? low : high) = middle;
  }
  const AdamWTensor& tensor = batch.tensors[low];
  const int64_t first = int64_t{blockIdx.x - batch.first_block[low]} * kChunk;
  const int64_t last = min(first + kChunk, tensor.size);
  for (int64_t i = first + int64_t{V} * threadIdx.x; i < last; i += V * kThreads) {
    step_pack<T, V>(tensor, scale, i);
  }
}

template <class T>
void launch(const Batch& batch, unsigned blocks, int v, cudaStream_t stream) {
  const auto kernel = v == 4 ? &adamw_kernel<T, 4> : &adamw_kernel<T, 1>;
  tensor::launch_early(kernel, blocks, kThreads, 0, stream, batch);
  REYNARD_CHECK_LAUNCH();
}

int width_of(const AdamWTensor& p) {
  const int v = vector_width(p.size, 4, {p.value, p.gradient, p.exp_avg, p.exp_avg_sq, p.compute});
  return v == 4 ? 4 : 1;
}

// The tensors of one vector width, as many as a launch takes at a time.
template <class T>
void launch_all(const AdamWTask& task, int v, cudaStream_t stream) {
  Batch batch;
  batch.gradient_scale = task.gradient_scale;
  unsigned blocks = 0;
  for (int64_t i = 0; i < task.num_tensors; ++i) {
    const AdamWTensor& tensor = task.tensors[i];
    if (tensor.size == 0 || width_of(tensor) != v) continue;
    if (batch.count == Batch::kMost) {
      launch<T>(batch, blocks, v, stream);
      batch.count = 0;
      blocks = 0;
    }
    batch.tensors[batch.count] = tensor;
    batch.first_block[batch.count++] = blocks;
    blocks += blocks_for(tensor.size, kChunk);
  }
  if (batch.count > 0) launch<T>(batch, blocks, v, stream);
}

}  // namespace

void adamw(const AdamWTask& task, Element element, int64_t /*elements*/, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    for (const int v : {4, 1}) launch_all<decltype(zero)>(task, v, stream);
  });
}

}  // namespace reynard::ops::cuda
