#include "reynard/attention/bias_limits.h"
#include "reynard/attention/cuda/decode.h"
#include "reynard/attention/cuda/simt_tile.cuh"
#include "reynard/attention/log_mass.h"
#include "reynard/attention/pruning_limits.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <cmath>

namespace reynard::attention::cuda {

namespace {

using simt::load_value;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kAhead = 16;  // gates read before they are added

// The sum of head h of sequence s before its new tokens.
__device__ double sum_before(const PageWriteTask& t, int s, int h) {
  const int64_t before = t.lengths[s] - t.T - 1;
  if (before < 0) return 0;
  const int group = t.H / t.G;
  const int64_t page = t.page_table[(int64_t{s} * t.G + h / group) * t.N + before / kPageKeys];
  return t.sums[(page * group + h % group) * kPageKeys + before % kPageKeys];
}

__device__ double bounded(double gate) {
  return gate < kSmallestLogGate ? kSmallestLogGate : gate;  // NaN stays
}

// One thread per head, token after token: sums do not depend on how a text was cut into calls.
__global__ void sums_kernel(const PageWriteTask t) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x, s = row / t.H, h = row % t.H;
  if (s >= t.S) return;
  double sum = sum_before(t, s, h);
  for (int base = 0; base < t.T; base += kAhead) {
    float gates[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int64_t token = int64_t{s} * t.T + base + i;
      if (t.log_gate && base + i < t.T) gates[i] = t.log_gate[token * t.H + h];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= t.T) break;
      sum += bounded(gates[i]);
      t.token_sums[int64_t{row} * t.T + base + i] = sum;
    }
  }
}

// Sums of the new tokens of a head: as given or by sums_kernel; of a single token without a launch
// of its own.
struct GivenSums {
  const double* sums;
  __device__ GivenSums(const PageWriteTask& t, int s, int h)
      : sums((t.given_sums ? t.given_sums : t.token_sums) + (int64_t{s} * t.H + h) * t.T) {}
  __device__ double operator[](int64_t token) const { return sums[token]; }
};
struct SumOfOne {
  double sum;
  __device__ SumOfOne(const PageWriteTask& t, int s, int h)
      : sum(sum_before(t, s, h) + (t.log_gate ? bounded(t.log_gate[int64_t{s} * t.H + h]) : 0)) {}
  __device__ double operator[](int64_t /*token*/) const { return sum; }
};

// Pages that T tokens lie in, at most.
int pages_of(int T) {
  return (T + 2 * kPageKeys - 2) / kPageKeys;
}

// One block of threads per page: rows by warps, and the bounds.
template <class Sums>
__global__ void __launch_bounds__(kThreads) pages_kernel(const PageWriteTask t) {
  tensor::wait_for_kernel_before();
  __shared__ float largest[kWarps];
  const int g = blockIdx.y, s = blockIdx.z, group = t.H / t.G;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t length = t.lengths[s], begin = length - t.T;
  if (length == 0) return;
  const int64_t n = begin / kPageKeys + blockIdx.x;
  const int64_t first = max(n * kPageKeys, begin), end = min((n + 1) * kPageKeys, length);
  if (first >= end) return;
  const int64_t page = t.page_table[(int64_t{s} * t.G + g) * t.N + n];
  if (page < 0) return;
  const bool begins = first % kPageKeys == 0;
  // The mass of each head by one thread, at most 64 terms: the last ones, whose warps have the
  // fewest rows.
  for (int i = kThreads - 1 - static_cast<int>(threadIdx.x); i < group; i += kThreads) {
    const Sums c(t, s, g * group + i);
    const int64_t row = page * group + i;
    double mass = begins ? -INFINITY : t.masses[row];
    for (int64_t slot = first; slot < end; ++slot) {
      const double sum = c[slot - begin];
      t.sums[row * kPageKeys + slot % kPageKeys] = sum;
      mass = log_add_exp(mass, -sum);
    }
    t.masses[row] = mass;
  }
  float top = 0;
  for (int64_t slot = first + warp; slot < end; slot += kWarps) {
    const int64_t row = (int64_t{s} * t.T + slot - begin) * t.G + g;
    const int64_t from = row * t.row_bytes;
    const int64_t to = (page * kPageKeys + slot % kPageKeys) * t.row_bytes;
    for (int i = lane * 2; i < t.row_bytes; i += 64) {
      const auto copy = [&](void* pool, const void* rows) {
        *reinterpret_cast<uint16_t*>(static_cast<char*>(pool) + to + i) =
            *reinterpret_cast<const uint16_t*>(static_cast<const char*>(rows) + from + i);
      };
      copy(t.keys, t.k);
      copy(t.values, t.v);
    }
    const Operand keys = {const_cast<void*>(t.k), 0, 0, 0, t.element};
    float squares = 0;
    for (int d = lane; d < t.D; d += 32) {
      const float value = load_value(keys, row * t.D + d);
      squares = fmaf(value, value, squares);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0U, squares, step);
    // Of a broken key nothing is known: its page is read as long as it is there.
    top = isnan(squares) ? INFINITY : fmaxf(top, squares);
  }
  if (lane == 0) largest[warp] = top;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (const float other : largest) top = fmaxf(top, other);
    t.norms[page] = fmaxf(sqrtf(top) * kNormMargin, begins ? 0 : t.norms[page]);
  }
}

}  // namespace

void write_pages(const PageWriteTask& task, cudaStream_t stream) {
  const dim3 pages(pages_of(task.T), task.G, task.S);
  if (task.T == 1 && !task.given_sums) {
    tensor::launch_early(pages_kernel<SumOfOne>, pages, kThreads, 0, stream, task);
    REYNARD_CHECK_LAUNCH();
    return;
  }
  if (!task.given_sums) {
    constexpr int kHeads = 32;
    sums_kernel<<<div_up(task.S * task.H, kHeads), kHeads, 0, stream>>>(task);
    REYNARD_CHECK_LAUNCH();
  }
  tensor::launch_early(pages_kernel<GivenSums>, pages, kThreads, 0, stream, task);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::attention::cuda
