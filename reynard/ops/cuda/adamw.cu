// AdamW: four neighbouring elements per thread, each read and written once.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

constexpr int kThreads = 256;

template <class T, int V>
__global__ void adamw_kernel(AdamWRow p, int64_t elements) {
  const float scale = *p.gradient_scale;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * V;
  if (i >= elements || !isfinite(scale)) return;
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

}  // namespace

void adamw(const AdamWRow& p, Element element, int64_t elements, cudaStream_t stream) {
  const int v =
      vector_width(elements, 4, {p.value, p.gradient, p.exp_avg, p.exp_avg_sq, p.compute});
  with_element(element, [&](auto zero) {
    using T = decltype(zero);
    if (v == 4) {
      adamw_kernel<T, 4>
          <<<blocks_for(elements, int64_t{4} * kThreads), kThreads, 0, stream>>>(p, elements);
    } else {
      adamw_kernel<T, 1><<<blocks_for(elements, kThreads), kThreads, 0, stream>>>(p, elements);
    }
  });
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::ops::cuda
