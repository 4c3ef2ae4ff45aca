// Products of few rows of activations with whole weights, which memory bounds: a weight is read
// once, for all tokens of a tile. Weights that share their input are one launch. A weight's first
// elements are loaded while the kernel before still makes the input.

#include "reynard/ops/cuda/packs.cuh"
#include "reynard/ops/cuda/row_launch.h"
#include "reynard/tensor/cuda_early.cuh"
#include "reynard/tensor/cuda_launch.h"

namespace reynard::ops::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
constexpr int kPack = 8;         // elements that a lane loads at once
constexpr int kMostTokens = 16;  // of a tile
// bf16: rows and tokens of a product of the matrix unit.
constexpr int kTileRows = 16, kTileTokens = 8;
static_assert(kMostTokens == 2 * kTileTokens);
static_assert(kTileRows * kMostTokens == kThreads, "a thread for each sum of a tile");

__host__ __device__ int rows_per_block(const FewRowsTask::Weight& weight) {
  return weight.is_f32 ? kWarps : kTileRows;
}
__host__ __device__ int blocks_of(const FewRowsTask::Weight& weight) {
  return (weight.rows + rows_per_block(weight) - 1) / rows_per_block(weight);
}

// Tokens past the end repeat the last one.
template <class X>
__device__ const X* row_of(const FewRowsTask& p, int token) {
  return static_cast<const X*>(p.x) + int64_t{min(token, p.tokens - 1)} * p.width;
}

// f32 weights: a row by a warp.
template <class X, int kTokens>
__device__ void multiply_row(const FewRowsTask& p, const FewRowsTask::Weight& weight, int row) {
  constexpr int kAhead = 4, kStep = kWarpSize * kPack;
  if (row >= weight.rows) return;
  const int lane = threadIdx.x % kWarpSize, first = lane * kPack;
  const int first_token = blockIdx.y * kMostTokens;
  const float* values = static_cast<const float*>(weight.values) + int64_t{row} * p.width;
  Elements<float, kPack> ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (first + i * kStep < p.width) ahead[i] = load_elements<kPack>(values + first + i * kStep);
  }
  tensor::wait_for_kernel_before();
  double sums[kTokens] = {};  // only the few products of a pack are rounded
  const auto add = [&](const Elements<float, kPack>& w, int at) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const Pack<kPack> in = load<kPack>(row_of<X>(p, first_token + t) + at);
      float even = 0, odd = 0;
#pragma unroll
      for (int v = 0; v < kPack; v += 2) {
        even = fmaf(in.at[v], w.at[v], even);
        odd = fmaf(in.at[v + 1], w.at[v + 1], odd);
      }
      sums[t] += even + odd;
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (first + i * kStep < p.width) add(ahead[i], first + i * kStep);
  }
  for (int at = first + kAhead * kStep; at < p.width; at += kStep) {
    add(load_elements<kPack>(values + at), at);
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      sums[t] += __shfl_xor_sync(~0U, sums[t], distance);
    }
    const int token = first_token + t;
    if (lane != 0 || token >= p.tokens) continue;
    static_cast<float*>(weight.y)[int64_t{token} * weight.rows + row] = static_cast<float>(sums[t]);
  }
}

// c += a b of 16 rows, 8 tokens and 16 elements.
__device__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// bf16 weights: 16 rows by the matrix unit, their width shared by the warps of a block. A lane
// loads eight neighbours of a row at once: which elements the unit multiplies together is no
// matter, as long as they are the same of both factors.
template <int kTiles>
__device__ void multiply_tiles(const FewRowsTask& p,
                               const FewRowsTask::Weight& weight,
                               int first_row) {
  constexpr int kAhead = 4, kChunk = kPack * 4, kColumns = kTiles * kTileTokens;
  __shared__ float parts[kWarps][kColumns][kTileRows];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int of_eight = lane / 4, of_four = lane % 4;
  const auto* values = static_cast<const __nv_bfloat16*>(weight.values);
  // Rows past the end repeat the last one.
  const auto* upper = values + int64_t{min(first_row + of_eight, weight.rows - 1)} * p.width;
  const auto* lower = values + int64_t{min(first_row + of_eight + 8, weight.rows - 1)} * p.width;
  const auto place = [&](int i) { return (warp + i * kWarps) * kChunk + of_four * kPack; };
  const auto load_pack = [&](const __nv_bfloat16* row, int at) {
    return at < p.width ? *reinterpret_cast<const uint4*>(row + at) : uint4{};
  };
  uint4 up[kAhead], low[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    up[i] = load_pack(upper, place(i)), low[i] = load_pack(lower, place(i));
  }
  tensor::wait_for_kernel_before();
  const int first_token = blockIdx.y * kMostTokens;
  float sums[kTiles][4] = {};
  const auto add = [&](const uint4& u, const uint4& l, int at) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int token = first_token + tile * kTileTokens + of_eight;
      const uint4 in = load_pack(row_of<__nv_bfloat16>(p, token), at);
      multiply_add(sums[tile], {u.x, l.x, u.y, l.y}, in.x, in.y);
      multiply_add(sums[tile], {u.z, l.z, u.w, l.w}, in.z, in.w);
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) add(up[i], low[i], place(i));
  for (int i = kAhead; (warp + i * kWarps) * kChunk < p.width; ++i) {
    add(load_pack(upper, place(i)), load_pack(lower, place(i)), place(i));
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      parts[warp][tile * kTileTokens + 2 * of_four + c % 2][of_eight + c / 2 * 8] = sums[tile][c];
    }
  }
  __syncthreads();
  const int row = threadIdx.x % kTileRows, column = threadIdx.x / kTileRows;
  const int token = first_token + column;
  if (column >= kColumns || token >= p.tokens || first_row + row >= weight.rows) return;
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += parts[w][column][row];
  const int64_t to = int64_t{token} * weight.rows + first_row + row;
  if (weight.y_is_f32) {
    static_cast<float*>(weight.y)[to] = sum;
  } else {
    narrow(sum, static_cast<__nv_bfloat16*>(weight.y)[to]);
  }
}

template <class X, int kTokens>
__global__ void __launch_bounds__(kThreads) few_rows_kernel(const FewRowsTask p) {
  tensor::let_next_kernel_start();
  int block = blockIdx.x, i = 0;
  for (; block >= blocks_of(p.weights[i]); ++i) block -= blocks_of(p.weights[i]);
  const FewRowsTask::Weight& weight = p.weights[i];
  if (weight.is_f32) {
    multiply_row<X, kTokens>(p, weight, block * kWarps + threadIdx.x / kWarpSize);
  } else if constexpr (sizeof(X) == sizeof(__nv_bfloat16)) {
    constexpr int kTiles = kTokens > kTileTokens ? 2 : 1;
    multiply_tiles<kTiles>(p, weight, block * kTileRows);
  }
}

template <int kTokens>
void launch(const FewRowsTask& p, Element element, cudaStream_t stream) {
  int blocks = 0;
  for (int i = 0; i < p.num_weights; ++i) blocks += blocks_of(p.weights[i]);
  const dim3 grid(blocks, blocks_for(p.tokens, kMostTokens));
  with_element(element, [&](auto zero) {
    const auto kernel = &few_rows_kernel<decltype(zero), kTokens>;
    tensor::launch_early(kernel, grid, kThreads, 0, stream, p);
  });
  REYNARD_CHECK_LAUNCH();
}

}  // namespace

void few_row_products(const FewRowsTask& p,
                      Element element,
                      int64_t /*tokens*/,
                      cudaStream_t stream) {
  if (p.tokens > kTileTokens) return launch<kMostTokens>(p, element, stream);
  if (p.tokens > 1) return launch<kTileTokens>(p, element, stream);
  launch<1>(p, element, stream);
}

}  // namespace reynard::ops::cuda
