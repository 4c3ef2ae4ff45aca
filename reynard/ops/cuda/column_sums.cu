// Sums over the rows of partial sums: a warp reads rows of 32 columns, every kWarps-th row; the
// warps' sums are added in their order.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

constexpr int kWarps = 32;

__global__ void __launch_bounds__(kWarps* kWarpSize) column_sums_kernel(ColumnSums p) {
  tensor::wait_for_kernel_before();
  __shared__ double of_warps[kWarps][kWarpSize];
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int64_t column = int64_t{blockIdx.x} * kWarpSize + lane;
  double sum = 0;
  if (column < p.width) {
#pragma unroll 8
    for (int64_t row = warp; row < p.rows; row += kWarps) sum += p.partial[row * p.width + column];
  }
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= p.width) return;
  for (int w = 1; w < kWarps; ++w) sum += of_warps[w][lane];
  p.sums[column] = static_cast<float>(sum);
}

}  // namespace

void column_sums(const ColumnSums& p, Element /*element*/, int64_t columns, cudaStream_t stream) {
  tensor::launch_early(
      column_sums_kernel, blocks_for(columns, kWarpSize), kWarps * kWarpSize, 0, stream, p);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::ops::cuda
