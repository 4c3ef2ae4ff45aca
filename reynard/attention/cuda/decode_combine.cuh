#pragma once
// How the softmaxes of runs become those of queries, in a fixed order.

#include "reynard/attention/cuda/decode.h"
#include "reynard/attention/cuda/logarithms.cuh"
#include "reynard/attention/cuda/registers.cuh"

#include <cmath>

namespace reynard::attention::cuda {

// Softmaxes of runs of pages, not yet combined.
struct Partials {
  float* largest;  // (S, H, runs) in powers of two
  float* total;    // (S, H, runs)
  float* out;      // (S, H, runs, D), not divided by total
};

// Runs of a query whose pages it reads, [first, end), at least one; the others are left out.
struct RunRange {
  int first, end;
};
// begin: of the query's first key.
__device__ __forceinline__ RunRange runs_from(const DecodeTask& task, int begin, int length) {
  const int run_keys = task.run_pages * kPageKeys;
  const int end = max((length + run_keys - 1) / run_keys, 1);
  return {min(begin / run_keys, end - 1), end};
}

// One query by a block of threads: every group of `width` threads (a power of two, at least D /
// kOwn) its share of the runs, kOwn dimensions a thread, then the groups in order.
template <class Scalar, int kOwn, int kThreads>
__device__ __forceinline__ void combine_runs(
    const DecodeTask& task, const Partials& partials, int64_t head, RunRange runs, int width) {
  struct alignas(4 * kOwn) Dims {
    float at[kOwn] = {};
  };
  __shared__ float tops[kThreads], totals[kThreads];
  __shared__ Dims outs[kThreads];
  const int64_t row = head * task.num_runs;
  const int group = threadIdx.x / width, num_groups = kThreads / width;
  const int d = static_cast<int>(threadIdx.x) % width * kOwn;
  Dims out;
  float top = kLowest, total = 0;
#pragma unroll 4
  for (int run = runs.first + group; run < runs.end; run += num_groups) {
    const int64_t at = row + run;
    const float largest = partials.largest[at], of_run = partials.total[at];
    Dims own;
    if (d < task.D) own = *reinterpret_cast<const Dims*>(partials.out + at * task.D + d);
    const float raised = fmaxf(top, largest);
    const float keep = exp2_approx(top - raised), weight = exp2_approx(largest - raised);
    top = raised;
    total = fmaf(weight, of_run, keep * total);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) out.at[i] = fmaf(weight, own.at[i], keep * out.at[i]);
  }
  tops[threadIdx.x] = top, totals[threadIdx.x] = total, outs[threadIdx.x] = out;
  __syncthreads();
  if (group != 0 || d >= task.D) return;
  for (int other = 1; other < num_groups; ++other) {
    top = fmaxf(top, tops[other * width + threadIdx.x]);
  }
  const float first = exp2_approx(tops[threadIdx.x] - top);
  total *= first;
#pragma unroll
  for (float& x : out.at) x *= first;
  for (int other = 1; other < num_groups; ++other) {
    const int at = other * width + threadIdx.x;
    const float weight = exp2_approx(tops[at] - top);
    total = fmaf(weight, totals[at], total);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) out.at[i] = fmaf(weight, outs[at].at[i], out.at[i]);
  }
  const bool sees = total != 0;  // NaN is seen
  if (d == 0) {
    const double lse = kLn2 * (top + log2f(total));
    task.lse[head] = sees ? static_cast<float>(lse) : -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    static_cast<Scalar*>(task.out)[head * task.D + d + i] =
        static_cast<Scalar>(sees ? out.at[i] / total : 0.0F);
  }
}

// Whether all runs of a query are there: true in the block that arrives last at `finished`, which
// then sees what the others left.
__device__ __forceinline__ bool is_last_of_runs(int32_t* finished, int num_runs) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(finished, 1) == num_runs - 1;
  __syncthreads();
  __threadfence();
  return last;
}

}  // namespace reynard::attention::cuda
