// The token shift: one team of lanes per token and head.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

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
__global__ void shift_forward_kernel(ShiftForward p, Teams teams, int64_t rows) {
  const int lane = threadIdx.x % teams.lanes;
  const int64_t index = team_row(teams, rows * p.heads);
  const int64_t offset = index * p.width;
  const float a = shift_weight<T>(p, index);
  const T* before = row_before<T>(p, index / p.heads, index % p.heads);
  for (int64_t i = lane * V; i < p.width; i += teams.lanes * V) {
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
__global__ void shift_backward_kernel(ShiftBackward p, Teams teams, int64_t rows) {
  const ShiftForward& f = p.forward;
  const int lane = threadIdx.x % teams.lanes;
  const int64_t index = team_row(teams, rows * f.heads);
  const int64_t t = index / f.heads, head = index % f.heads;
  const int64_t offset = index * f.width;
  const bool goes_on = t + 1 < p.num_tokens && sequence_at(f, t + 1) < 0;
  const float a = shift_weight<T>(f, index);
  const float a_next = goes_on ? shift_weight<T>(f, index + f.heads) : 0.0F;
  const T* dy = static_cast<const T*>(p.dy) + offset;
  const T* before = row_before<T>(f, t, head);
  float products = 0;
  for (int64_t i = lane * V; i < f.width; i += teams.lanes * V) {
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
  products = team_sum(products, teams.lanes);
  if (lane == 0) narrow(products * a * (1.0F - a), static_cast<T*>(p.d_logit)[index]);
}

}  // namespace

void shift_forward(const ShiftForward& p, Element element, int64_t rows, cudaStream_t stream) {
  const Teams teams = teams_for(p.width, {p.x, p.previous, p.y});
  with_element(element, [&](auto zero) {
    with_width(teams.vector, [&](auto width) {
      shift_forward_kernel<decltype(zero), width()>
          <<<blocks_for(rows * p.heads, teams.per_block()), Teams::kThreads, 0, stream>>>(
              p, teams, rows);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

void shift_backward(const ShiftBackward& p, Element element, int64_t rows, cudaStream_t stream) {
  const ShiftForward& f = p.forward;
  const Teams teams = teams_for(f.width, {f.x, f.previous, p.dy, p.dx});
  with_element(element, [&](auto zero) {
    with_width(teams.vector, [&](auto width) {
      shift_backward_kernel<decltype(zero), width()>
          <<<blocks_for(rows * f.heads, teams.per_block()), Teams::kThreads, 0, stream>>>(
              p, teams, rows);
    });
  });
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::ops::cuda
