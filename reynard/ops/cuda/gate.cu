// Gated activations and rotary: every thread works on one pack of neighbouring elements.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

constexpr int kThreads = 256;

__device__ int64_t thread_index() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

template <class T, int V>
__global__ void gate_forward_kernel(GateRows p, int64_t rows) {
  tensor::wait_for_kernel_before();
  tensor::let_next_kernel_start();
  const int64_t packs = p.width / V, index = thread_index();
  if (index >= rows * packs) return;
  const int64_t row = index / packs, i = (index - row * packs) * V;
  Pack<V> x = load<V>(static_cast<const T*>(p.x) + row * p.x_stride + i);
  const Pack<V> gate = load<V>(static_cast<const T*>(p.gate) + row * p.gate_stride + i);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float open = sigmoid(gate.at[v]);
    x.at[v] *= p.silu ? gate.at[v] * open : open;
  }
  store(static_cast<T*>(p.out) + row * p.width + i, x);
}

template <class T, int V>
__global__ void gate_backward_kernel(GateRows p, int64_t rows) {
  tensor::wait_for_kernel_before();
  const int64_t packs = p.width / V, index = thread_index();
  if (index >= rows * packs) return;
  const int64_t row = index / packs, i = (index - row * packs) * V;
  const Pack<V> x = load<V>(static_cast<const T*>(p.x) + row * p.x_stride + i);
  const Pack<V> gate = load<V>(static_cast<const T*>(p.gate) + row * p.gate_stride + i);
  const Pack<V> d_out = load<V>(static_cast<const T*>(p.d_out) + row * p.width + i);
  Pack<V> dx, d_gate;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float g = gate.at[v], open = sigmoid(g), slope = open * (1.0F - open);
    dx.at[v] = d_out.at[v] * (p.silu ? g * open : open);
    d_gate.at[v] = d_out.at[v] * x.at[v] * (p.silu ? open + g * slope : slope);
  }
  store(static_cast<T*>(p.dx) + row * p.x_stride + i, dx);
  store(static_cast<T*>(p.d_gate) + row * p.gate_stride + i, d_gate);
}

__global__ void log_gate_kernel(LogGateRows p, int64_t rows) {
  tensor::wait_for_kernel_before();
  tensor::let_next_kernel_start();
  const int64_t index = thread_index();
  if (index >= rows * p.heads) return;
  const float sum = p.logits[index] + p.bias[index % p.heads];
  p.y[index] = fminf(sum, 0) - log1pf(expf(-fabsf(sum)));
}

template <class T>
__global__ void rotary_kernel(RotaryRows p, int64_t rows) {
  tensor::wait_for_kernel_before();
  tensor::let_next_kernel_start();
  const int64_t half = p.width / 2, index = thread_index();
  if (index >= rows * p.heads * half) return;
  const int64_t i = index % half, row = index / half;
  const int64_t token = row / p.heads;
  const int64_t angle = (p.positions ? p.positions[token] : token) * half + i;
  const float c = p.cosine[angle], s = p.inverse ? -p.sine[angle] : p.sine[angle];
  const T* x = static_cast<const T*>(p.x) + row * p.width + i;
  T* y = static_cast<T*>(p.y) + row * p.width + i;
  const float a = widened(x[0]), b = widened(x[half]);
  narrow(a * c - b * s, y[0]);
  narrow(b * c + a * s, y[half]);
}

int gate_width(const GateRows& p) {
  if (p.x_stride % 8 != 0 || p.gate_stride % 8 != 0) return 1;
  return vector_width(p.width, 8, {p.x, p.gate, p.out, p.d_out, p.dx, p.d_gate});
}

}  // namespace

void gate_forward(const GateRows& p, Element element, int64_t rows, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    with_width(gate_width(p), [&](auto width) {
      tensor::launch_early(gate_forward_kernel<decltype(zero), width()>,
                           blocks_for(rows * (p.width / width()), kThreads),
                           kThreads,
                           0,
                           stream,
                           p,
                           rows);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

void gate_backward(const GateRows& p, Element element, int64_t rows, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    with_width(gate_width(p), [&](auto width) {
      tensor::launch_early(gate_backward_kernel<decltype(zero), width()>,
                           blocks_for(rows * (p.width / width()), kThreads),
                           kThreads,
                           0,
                           stream,
                           p,
                           rows);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

void log_gate(const LogGateRows& p, Element /*element*/, int64_t rows, cudaStream_t stream) {
  tensor::launch_early(
      log_gate_kernel, blocks_for(rows * p.heads, kThreads), kThreads, 0, stream, p, rows);
  REYNARD_CHECK_LAUNCH();
}

void rotary(const RotaryRows& p, Element element, int64_t rows, cudaStream_t stream) {
  with_element(element, [&](auto zero) {
    tensor::launch_early(rotary_kernel<decltype(zero)>,
                         blocks_for(rows * p.heads * (p.width / 2), kThreads),
                         kThreads,
                         0,
                         stream,
                         p,
                         rows);
  });
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::ops::cuda
