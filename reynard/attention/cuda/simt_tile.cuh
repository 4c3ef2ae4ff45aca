#pragma once
// Tiles of the path that multiplies in f32 on the ordinary cores: any input type, any head
// dimension up to 256. 256 threads form a 16 x 16 grid; thread (y, x) owns rows y, y + 16, ... and
// columns x, x + 16, ... of every product.

#include "reynard/attention/cuda/logarithms.cuh"
#include "reynard/attention/cuda/problem.h"
#include "reynard/attention/cuda/visibility.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace reynard::attention::cuda::simt {

constexpr int kThreads = 256;
constexpr int kSide = 16;

// kDim: head dimension rounded up to 64, 128 or 256.
template <int kDim>
struct Tile {
  // Four operand tiles of the backward fit into the 99 KB of the smallest supported GPU's block at
  // D = 64 with 64 rows; more dimensions take fewer rows.
  static constexpr int kRows = kDim == 64 ? 64 : kDim == 128 ? 32 : 16;
  static constexpr int kRowsPerThread = kRows / kSide;
  static constexpr int kDimsPerThread = kDim / kSide;
  static constexpr int kStride = kDim + 1;        // odd: 16 rows at one depth lie in 16 banks
  static constexpr int kScoreStride = kRows + 1;  // likewise
  static constexpr int kValues = kRows * kStride;
  static constexpr int kScores = kRows * kScoreStride;
};

__device__ inline float load_value(const Operand& x, int64_t offset) {
  switch (x.element) {
    case Element::kFloat:
      return static_cast<const float*>(x.data)[offset];
    case Element::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(x.data)[offset]);
    default:
      return __half2float(static_cast<const __half*>(x.data)[offset]);
  }
}

__device__ inline void store_value(const Operand& x, int64_t offset, float value) {
  switch (x.element) {
    case Element::kFloat:
      static_cast<float*>(x.data)[offset] = value;
      break;
    case Element::kBFloat16:
      static_cast<__nv_bfloat16*>(x.data)[offset] = __float2bfloat16_rn(value);
      break;
    default:
      static_cast<__half*>(x.data)[offset] = __float2half_rn(value);
  }
}

// The place of a thread in the grid.
struct Place {
  int y, x;
};
__device__ inline Place own_place() {
  const int thread = threadIdx.x;
  return {thread / kSide, thread % kSide};
}

// Rows [first, first + kRows) of one head into shared memory; rows outside `valid` become zeros and
// are not read (they may hold anything).
template <int kDim>
__device__ void load_tile(float* tile, const HeadRows& rows, int D, int first, KeyRange valid) {
  using T = Tile<kDim>;
  const Operand& x = rows.array;
  for (int index = threadIdx.x; index < T::kRows * kDim; index += kThreads) {
    const int row = index / kDim, d = index % kDim;
    const bool there = d < D && valid.holds(first + row);
    tile[row * T::kStride + d] =
        there ? load_value(x, rows.offset + int64_t{first + row} * x.time + d) : 0;
  }
}

// A sum of many terms to the last digit: what its additions and factors round away is kept beside
// it and goes into the next addition (Kahan). No product may be fused into an addition here.
struct LongSum {
  float sum = 0, rest = 0;

  __device__ void scale(float factor) {
    const float product = __fmul_rn(sum, factor);
    rest = fmaf(rest, factor, fmaf(sum, factor, -product));
    sum = product;
  }
  __device__ void add(float term) {
    const float with_rest = __fadd_rn(term, rest);
    const float next = __fadd_rn(sum, with_rest);
    rest = __fsub_rn(with_rest, __fsub_rn(next, sum));
    sum = next;
  }
  __device__ float value() const { return sum + rest; }
};

// products[a][c] = left row (y + 16 a) . right row (x + 16 c), 16 dimensions at a time: one long
// chain of additions would round more than a product in blocks does.
template <int kDim>
__device__ void row_products(
    const float* left,
    const float* right,
    Place place,
    float (&products)[Tile<kDim>::kRowsPerThread][Tile<kDim>::kRowsPerThread]) {
  using T = Tile<kDim>;
  const auto [y, x] = place;
  for (auto& row : products) {
    for (float& value : row) value = 0;
  }
#pragma unroll 1
  for (int begin = 0; begin < kDim; begin += kSide) {
    float few[T::kRowsPerThread][T::kRowsPerThread] = {};
#pragma unroll 4
    for (int d = begin; d < begin + kSide; ++d) {
      float r[T::kRowsPerThread];
#pragma unroll
      for (int c = 0; c < T::kRowsPerThread; ++c) r[c] = right[(x + kSide * c) * T::kStride + d];
#pragma unroll
      for (int a = 0; a < T::kRowsPerThread; ++a) {
        const float l = left[(y + kSide * a) * T::kStride + d];
#pragma unroll
        for (int c = 0; c < T::kRowsPerThread; ++c) few[a][c] = fmaf(l, r[c], few[a][c]);
      }
    }
#pragma unroll
    for (int a = 0; a < T::kRowsPerThread; ++a) {
#pragma unroll
      for (int c = 0; c < T::kRowsPerThread; ++c) products[a][c] += few[a][c];
    }
  }
}

// Sums of the rows and dimensions that a thread owns.
template <int kDim>
using OwnSums = LongSum[Tile<kDim>::kRowsPerThread][Tile<kDim>::kDimsPerThread];

// sums[a][c] += sum_j weights(y + 16 a, j) * values[j][x + 16 c] over the rows j of a tile, a few
// of them summed by themselves: thousands of equal terms added to a sum much larger than they are
// would all be rounded the same way. weight(row, j) reads shared memory.
template <int kDim, class Weight>
__device__ void add_weighted_rows(const Weight& weight,
                                  const float* values,
                                  Place place,
                                  OwnSums<kDim>& sums) {
  using T = Tile<kDim>;
  const auto [y, x] = place;
#pragma unroll 1
  for (int begin = 0; begin < T::kRows; begin += kSide) {
    float few[T::kRowsPerThread][T::kDimsPerThread] = {};
#pragma unroll 2
    for (int j = begin; j < begin + kSide; ++j) {
      float w[T::kRowsPerThread];
#pragma unroll
      for (int a = 0; a < T::kRowsPerThread; ++a) w[a] = weight(y + kSide * a, j);
#pragma unroll
      for (int c = 0; c < T::kDimsPerThread; ++c) {
        const float value = values[j * T::kStride + x + kSide * c];
#pragma unroll
        for (int a = 0; a < T::kRowsPerThread; ++a) few[a][c] = fmaf(w[a], value, few[a][c]);
      }
    }
#pragma unroll
    for (int a = 0; a < T::kRowsPerThread; ++a) {
#pragma unroll
      for (int c = 0; c < T::kDimsPerThread; ++c) sums[a][c].add(few[a][c]);
    }
  }
}

// c_i - c_j in powers of two. The difference is formed in f64: sums reach thousands where gates
// shut, and two of them that lie close would lose what sets them apart.
__device__ inline float bias_between(double query_sum, double key_sum) {
  return static_cast<float>((query_sum - key_sum) * kLog2E);
}

// An entry of (B, H, T) sums; 0 without bias.
__device__ inline double sum_at(const double* sums, int64_t index) {
  return sums ? sums[index] : 0;
}

// Over the 16 threads that share rows.
template <class Value, class Combine>
__device__ Value over_row(Value value, const Combine& combine) {
#pragma unroll
  for (int step = kSide / 2; step > 0; step /= 2) {
    value = combine(value, __shfl_xor_sync(~0U, value, step));
  }
  return value;
}

}  // namespace reynard::attention::cuda::simt
