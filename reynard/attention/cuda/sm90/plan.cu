#include "reynard/attention/cuda/sm90/plan.h"

#include "reynard/attention/cuda/launch.h"
#include "reynard/attention/cuda/visibility.cuh"

#include <cuda_bf16.h>

namespace reynard::attention::cuda::sm90 {

namespace {

constexpr double kLog2E = 1.4426950408889634;
// Heads whose tasks are in flight together: their keys and values stay in the L2 cache.
constexpr int kHeadsPerSection = 8;
constexpr int kPlanThreads = 512;
constexpr int kMostCosts = 8192;  // longer ranges share the last bin

__global__ void __launch_bounds__(kKeysPerBlock)
    records_kernel(const Problem p, BiasRecord* records) {
  const int num_blocks = div_up(p.Tk, kKeysPerBlock);
  const int64_t head = blockIdx.x / num_blocks;
  const int first = blockIdx.x % num_blocks * kKeysPerBlock;
  const double* sums = p.key_sums + head * p.Tk;
  const double last = sums[min(first + kKeysPerBlock, p.Tk) - 1];
  const int j = first + threadIdx.x;
  BiasRecord& record = records[blockIdx.x];
  const float bias = j < p.Tk ? static_cast<float>((last - sums[j]) / p.scale) : 0;
  const __nv_bfloat16 high = __float2bfloat16_rn(bias);
  const float rest = bias - __bfloat162float(high);
  const __nv_bfloat16 middle = __float2bfloat16_rn(rest);
  const __nv_bfloat16 low = __float2bfloat16_rn(rest - __bfloat162float(middle));
  uint4 key = {};
  key.x = __bfloat16_as_ushort(high) | static_cast<uint32_t>(__bfloat16_as_ushort(middle)) << 16;
  key.y = __bfloat16_as_ushort(low);
  reinterpret_cast<uint4*>(record.keys)[threadIdx.x] = key;
  if (threadIdx.x == 0) {
    const double scaled = last * kLog2E;
    record.last_high = static_cast<float>(scaled);
    record.last_low = static_cast<float>(scaled - record.last_high);
    record.padding[0] = record.padding[1] = 0;
  }
}

// Key blocks that any of the rows [first, end) sees. Starts need not be monotone over blocks of 128
// queries, so each group of 64 is asked.
__device__ BlockRange range_of(const Problem& p, int b, int h, int first, int end) {
  int begin = p.Tk;
  for (int row = first; row < end; row += 64) {
    begin = min(begin, keys_of_query(p, b, h, row).begin);
  }
  const int last = keys_of_query(p, b, h, end - 1).end - 1;
  if (last < begin) return {};
  return {begin / kKeysPerBlock, last / kKeysPerBlock};
}

// One block per section of heads: a counting sort of its tasks by falling cost. The order within
// equal costs may differ between runs; results do not depend on it.
__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const Problem p, int rows, const Plan plan) {
  __shared__ int places[kMostCosts + 1];
  const int num_blocks = div_up(p.Tq, rows);
  const int first_task = blockIdx.x * kHeadsPerSection * num_blocks;
  const int end_task = min(first_task + kHeadsPerSection * num_blocks, p.B * p.H * num_blocks);
  const auto bin_of = [](const BlockRange& range) {  // costly first
    return kMostCosts - min(range.last - range.first + 1, kMostCosts);
  };
  for (int i = threadIdx.x; i <= kMostCosts; i += kPlanThreads) places[i] = 0;
  if (blockIdx.x == 0 && threadIdx.x == 0) *plan.next_task = 0;
  __syncthreads();
  for (int task = first_task + threadIdx.x; task < end_task; task += kPlanThreads) {
    const int head = task / num_blocks, first = task % num_blocks * rows;
    const BlockRange range = range_of(p, head / p.H, head % p.H, first, min(first + rows, p.Tq));
    plan.ranges[task] = range;
    atomicAdd(&places[bin_of(range)], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {  // exclusive sums of the counts by one warp
    int before = 0;
    for (int base = 0; base <= kMostCosts; base += 32) {
      const int i = base + threadIdx.x;
      const int count = i <= kMostCosts ? places[i] : 0;
      int sum = count;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(~0U, sum, distance);
        if (threadIdx.x >= distance) sum += other;
      }
      if (i <= kMostCosts) places[i] = before + sum - count;
      before += __shfl_sync(~0U, sum, 31);
    }
  }
  __syncthreads();
  for (int task = first_task + threadIdx.x; task < end_task; task += kPlanThreads) {
    plan.order[first_task + atomicAdd(&places[bin_of(plan.ranges[task])], 1)] = task;
  }
}

}  // namespace

void make_bias_records(const Problem& problem, BiasRecord* records, cudaStream_t stream) {
  const unsigned blocks = problem.B * problem.H * div_up(problem.Tk, kKeysPerBlock);
  records_kernel<<<blocks, kKeysPerBlock, 0, stream>>>(problem, records);
  REYNARD_CUDA_CHECK_LAUNCH();
}

void plan_queries(const Problem& problem, int rows, const Plan& plan, cudaStream_t stream) {
  const unsigned sections = div_up(problem.B * problem.H, kHeadsPerSection);
  plan_kernel<<<sections, kPlanThreads, 0, stream>>>(problem, rows, plan);
  REYNARD_CUDA_CHECK_LAUNCH();
}

}  // namespace reynard::attention::cuda::sm90
