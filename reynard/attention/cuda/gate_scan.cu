#include "reynard/attention/cuda/gate_scan.h"

#include "reynard/attention/bias_limits.h"
#include "reynard/attention/cuda/launch.h"

namespace reynard::attention::cuda {

namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kOwn = 4;  // consecutive positions per thread and step
constexpr int kStep = kThreads * kOwn;

// A running sum that may start anew: what lies before a restart does not reach beyond it.
struct Run {
  double sum = 0;
  bool restarted = false;
};

__device__ Run join(const Run& before, const Run& after) {
  return {after.restarted ? after.sum : before.sum + after.sum,
          before.restarted || after.restarted};
}

__device__ Run shuffled_up(const Run& run, int distance) {
  return {__shfl_up_sync(~0U, run.sum, distance),
          static_cast<bool>(__shfl_up_sync(~0U, static_cast<int>(run.restarted), distance))};
}

// Inclusive scan over the threads of a block; returns what lies before this thread, and in `whole`
// the run of all threads.
__device__ Run scanned_before(const Run& own, Run* warps, Run& whole) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Run run = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Run other = shuffled_up(run, distance);
    if (lane >= distance) run = join(other, run);
  }
  __syncthreads();
  if (lane == 31) warps[warp] = run;
  __syncthreads();
  if (warp == 0) {
    Run total = warps[lane];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const Run other = shuffled_up(total, distance);
      if (lane >= distance) total = join(other, total);
    }
    warps[lane] = total;
  }
  __syncthreads();
  Run before = shuffled_up(run, 1);
  if (lane == 0) before = {};
  if (warp > 0) before = join(warps[warp - 1], before);
  whole = warps[kWarps - 1];
  return before;
}

template <class Scalar>
__global__ void __launch_bounds__(kThreads) sums_kernel(const GateScan scan, double* sums) {
  __shared__ Run warps[kWarps];
  const int row = blockIdx.x, b = row / scan.H, h = row % scan.H;
  const auto* gates = static_cast<const Scalar*>(scan.log_gate) + int64_t{b} * scan.T * scan.H + h;
  double* out = sums + int64_t{row} * scan.T;
  Run carry;
  for (int base = 0; base < scan.T; base += kStep) {
    const int first = base + threadIdx.x * kOwn;
    Run own;
    double values[kOwn];
    for (int e = 0; e < kOwn; ++e) {
      const int t = first + e;
      const double gate = t < scan.T ? static_cast<double>(gates[int64_t{t} * scan.H]) : 0;
      // Written so that NaN stays.
      own.sum += gate < kSmallestLogGate ? kSmallestLogGate : gate;
      values[e] = own.sum;
    }
    Run whole;
    const Run before = join(carry, scanned_before(own, warps, whole));
    for (int e = 0; e < kOwn; ++e) {
      if (first + e < scan.T) out[first + e] = before.sum + values[e];
    }
    carry = join(carry, whole);
  }
}

// Positions are walked from the last to the first.
template <class Scalar>
__global__ void __launch_bounds__(kThreads) gradient_kernel(const GateGradient g) {
  __shared__ Run warps[kWarps];
  const GateScan& scan = g.scan;
  const int row = blockIdx.x, b = row / scan.H, h = row % scan.H;
  const int64_t column = int64_t{b} * scan.T * scan.H + h;
  const auto* gates = static_cast<const Scalar*>(scan.log_gate) + column;
  auto* out = static_cast<Scalar*>(g.dgate) + column;
  const double* dsums = g.dsums + int64_t{row} * scan.T;
  // A gate that has no effect (its token sees nothing before itself): gradient 0, and the sum
  // starts anew for the tokens before it.
  const auto is_idle = [&](int t) {
    const int query = t - (scan.T - g.Tq);
    return g.first_key && query >= 0 && g.first_key[int64_t{b} * g.Tq + query] >= t;
  };
  Run carry;
  for (int base = 0; base < scan.T; base += kStep) {
    const int first = scan.T - 1 - base - static_cast<int>(threadIdx.x) * kOwn;
    Run own, until[kOwn];
    for (int e = 0; e < kOwn; ++e) {
      const int t = first - e;
      if (t >= 0) own = is_idle(t) ? Run{0, true} : Run{own.sum + dsums[t], own.restarted};
      until[e] = own;
    }
    Run whole;
    const Run before = join(carry, scanned_before(own, warps, whole));
    for (int e = 0; e < kOwn; ++e) {
      const int t = first - e;
      if (t < 0) continue;
      const int64_t index = int64_t{t} * scan.H;
      const bool silent = is_idle(t) || static_cast<double>(gates[index]) < kSmallestLogGate;
      out[index] = silent ? Scalar{0} : static_cast<Scalar>(join(before, until[e]).sum);
    }
    carry = join(carry, whole);
  }
}

}  // namespace

void gate_sums(const GateScan& scan, double* sums, cudaStream_t stream) {
  const unsigned rows = scan.B * scan.H;
  if (scan.is_double) {
    sums_kernel<double><<<rows, kThreads, 0, stream>>>(scan, sums);
  } else {
    sums_kernel<float><<<rows, kThreads, 0, stream>>>(scan, sums);
  }
  REYNARD_CUDA_CHECK_LAUNCH();
}

void gate_sums_backward(const GateGradient& gradient, cudaStream_t stream) {
  const unsigned rows = gradient.scan.B * gradient.scan.H;
  if (gradient.scan.is_double) {
    gradient_kernel<double><<<rows, kThreads, 0, stream>>>(gradient);
  } else {
    gradient_kernel<float><<<rows, kThreads, 0, stream>>>(gradient);
  }
  REYNARD_CUDA_CHECK_LAUNCH();
}

}  // namespace reynard::attention::cuda
