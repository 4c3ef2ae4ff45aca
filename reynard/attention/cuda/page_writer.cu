#include "reynard/attention/bias_limits.h"
#include "reynard/attention/cuda/decode.h"
#include "reynard/attention/cuda/simt_tile.cuh"
#include "reynard/attention/log_mass.h"
#include "reynard/attention/pruning_limits.h"
#include "reynard/tensor/cuda_launch.h"

#include <cmath>

namespace reynard::attention::cuda {

namespace {

using simt::load_value;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kAhead = 16;  // gates read before they are added

// One thread per head, token after token: sums do not depend on how a text was cut into calls.
__global__ void sums_kernel(const PageWriteTask t) {
  const int h = blockIdx.x * blockDim.x + threadIdx.x;
  if (h >= t.H) return;
  double sum = t.last_sums[h];
  for (int base = 0; base < t.T; base += kAhead) {
    float gates[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (t.log_gate && base + i < t.T) gates[i] = t.log_gate[int64_t{base + i} * t.H + h];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i >= t.T) break;
      const double gate = gates[i];
      sum += gate < kSmallestLogGate ? kSmallestLogGate : gate;  // NaN stays
      t.token_sums[int64_t{h} * t.T + base + i] = sum;
    }
  }
  t.last_sums[h] = sum;
}

__global__ void last_sums_kernel(const PageWriteTask t) {
  const int h = blockIdx.x * blockDim.x + threadIdx.x;
  if (h < t.H) t.last_sums[h] = t.given_sums[int64_t{h} * t.T + t.T - 1];
}

// One block of threads per page: rows by warps, then the bounds.
__global__ void __launch_bounds__(kThreads) pages_kernel(const PageWriteTask t) {
  __shared__ float largest[kWarps];
  const int n = blockIdx.x % t.N, g = blockIdx.x / t.N, group = t.H / t.G;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t page = t.pages[blockIdx.x];
  if (page < 0) return;
  const int first = max(n * kPageKeys, t.first_slot);  // slots count from the first page's
  const int end = min((n + 1) * kPageKeys, t.first_slot + t.T);
  float top = 0;
  for (int slot = first + warp; slot < end; slot += kWarps) {
    const int64_t from = (int64_t{slot - t.first_slot} * t.G + g) * t.row_bytes;
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
      const float value = load_value(keys, (int64_t{slot - t.first_slot} * t.G + g) * t.D + d);
      squares = fmaf(value, value, squares);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0U, squares, step);
    // Of a broken key nothing is known: its page is read as long as it is there.
    top = isnan(squares) ? INFINITY : fmaxf(top, squares);
  }
  if (lane == 0) largest[warp] = top;
  __syncthreads();
  const bool begins = first % kPageKeys == 0;
  if (threadIdx.x == 0) {
    for (const float other : largest) top = fmaxf(top, other);
    t.norms[page] = fmaxf(sqrtf(top) * kNormMargin, begins ? 0 : t.norms[page]);
  }
  // The mass of each head by one thread: at most 64 terms.
  for (int i = threadIdx.x; i < group; i += kThreads) {
    const double* c = t.token_sums + int64_t{g * group + i} * t.T;
    const int64_t row = page * group + i;
    double mass = begins ? -INFINITY : t.masses[row];
    for (int slot = first; slot < end; ++slot) {
      const double sum = c[slot - t.first_slot];
      t.sums[row * kPageKeys + slot % kPageKeys] = sum;
      mass = log_add_exp(mass, -sum);
    }
    t.masses[row] = mass;
  }
}

}  // namespace

void write_pages(const PageWriteTask& given, cudaStream_t stream) {
  PageWriteTask task = given;
  constexpr int kHeads = 32;
  const unsigned heads = div_up(task.H, kHeads);
  if (task.given_sums) {
    last_sums_kernel<<<heads, kHeads, 0, stream>>>(task);
    task.token_sums = const_cast<double*>(task.given_sums);
  } else {
    sums_kernel<<<heads, kHeads, 0, stream>>>(task);
  }
  REYNARD_CHECK_LAUNCH();
  pages_kernel<<<task.G * task.N, kThreads, 0, stream>>>(task);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::attention::cuda
