#include "reynard/knn/cuda/filter_mma.h"

#include "reynard/knn/cuda/code.cuh"
#include "reynard/knn/cuda/copy_rows.cuh"
#include "reynard/tensor/cuda_launch.h"

#include <algorithm>

namespace reynard::knn::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTile = 16;  // keys of an instruction
constexpr int kLanes = 8;  // queries of an instruction
constexpr int kTiles = 4;  // of queries that a warp holds in registers
constexpr int kWarpQueries = kTiles * kLanes;
constexpr int kStages = 3;
constexpr int kMostFound = 1024;  // keys that wait in a block to be scored by the definition

// A key whose approximate score reaches its query's threshold.
struct Found {
  int query;  // of the group
  uint32_t place;
};

// D (keys x queries) += A (16 keys x 16) B (16 x 8 queries).
__device__ inline void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void load_tile(uint32_t (&a)[4], const uint4* address) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(address));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(at));
}

__device__ inline uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

// Bits of the largest |k_d| as bf16, of two packed values and `largest`; NaN is the largest.
__device__ inline uint32_t larger(uint32_t largest, uint32_t two) {
  const uint32_t magnitudes = two & 0x7fff7fffU;
  return max(largest, max(magnitudes & 0xffffU, magnitudes >> 16));
}

// One query's row of B for this thread.
template <int Steps>
struct Queries {
  uint32_t b[Steps][kTiles][2];
};

template <int Steps>
__device__ void load_queries(const FilterTask& t, int group, int first, Queries<Steps>& out) {
  const int lane = threadIdx.x % 32;
  const auto value = [&](const float* q, int d) {
    return q != nullptr && d < t.head_dim ? q[d] : 0.0F;
  };
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int j = first + tile * kLanes + lane / 4;
    const float* q =
        j < t.queries_per_group ? t.queries + query_index(t, group, j) * t.head_dim : nullptr;
#pragma unroll
    for (int s = 0; s < Steps; ++s) {
      const int d = s * 16 + lane % 4 * 2;
      out.b[s][tile][0] = pack(value(q, d), value(q, d + 1));
      out.b[s][tile][1] = pack(value(q, d + 8), value(q, d + 9));
    }
  }
}

// Scores a key by the definition and keeps it if it reaches the threshold.
__device__ __noinline__ void consider(const FilterTask& t, int group, Found found) {
  const int64_t query = query_index(t, group, found.query);
  const KeyGroup& keys = t.groups[group];
  const auto* key = reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(keys.keys) +
                                                   slot_of(keys, found.place) * keys.stride);
  const auto* q = reinterpret_cast<const float4*>(t.queries + query * t.head_dim);
  float sum = 0;
#pragma unroll 4
  for (int c = 0; c < t.head_dim / 8; ++c) {
    const uint4 bits = key[c];
    const float4 a = q[2 * c], b = q[2 * c + 1];
    sum = plain_step(sum, a.x, __uint_as_float(bits.x << 16));
    sum = plain_step(sum, a.y, __uint_as_float(bits.x & 0xffff0000U));
    sum = plain_step(sum, a.z, __uint_as_float(bits.y << 16));
    sum = plain_step(sum, a.w, __uint_as_float(bits.y & 0xffff0000U));
    sum = plain_step(sum, b.x, __uint_as_float(bits.z << 16));
    sum = plain_step(sum, b.y, __uint_as_float(bits.z & 0xffff0000U));
    sum = plain_step(sum, b.z, __uint_as_float(bits.w << 16));
    sum = plain_step(sum, b.w, __uint_as_float(bits.w & 0xffff0000U));
  }
  const Code code = make_code(sum, found.place);
  if (code >= t.thresholds[query]) append(t, query, code);
}

// What waits is scored by all threads, one key each: one lane alone would hold up its block.
__device__ inline void consider_all(const FilterTask& t, int group, const Found* found, int size) {
  for (int i = threadIdx.x; i < min(size, kMostFound); i += kThreads) consider(t, group, found[i]);
}

template <int Steps>
__global__ void __launch_bounds__(kThreads, Steps == 4 ? 2 : 1)
    filter_mma_kernel(const __grid_constant__ FilterTask t, int query_warps) {
  constexpr int kChunks = 2 * Steps;  // of 16 bytes per key
  constexpr int kStage = kBlockKeys * kChunks;
  extern __shared__ uint4 shared[];
  __shared__ uint32_t largest_of[2][kWarps];
  __shared__ float2 limits[kWarps * kWarpQueries];  // a query's threshold and margin
  __shared__ Found found[kMostFound];
  __shared__ int num_found;
  __shared__ bool many_found[2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = blockIdx.z;
  const KeyGroup keys = t.groups[group];
  const int first = (blockIdx.y * query_warps + warp % query_warps) * kWarpQueries;
  const int total = t.queries_per_group;

  Queries<Steps> q;
  load_queries<Steps>(t, group, first, q);
  for (int i = threadIdx.x; i < query_warps * kWarpQueries; i += kThreads) {
    const int j = blockIdx.y * query_warps * kWarpQueries + i;
    const int64_t query = j < total ? query_index(t, group, j) : 0;
    limits[i] = j < total ? float2{score_of(t.thresholds[query]), t.margins[query]}
                          : float2{CUDART_INF_F, 0.0F};
  }
  // This thread's results are of queries tile * 8 + lane % 4 * 2 + {0, 1} of its warp's.
  const float2* own_limits = limits + warp % query_warps * kWarpQueries + lane % 4 * 2;

  const int64_t all = (keys.size + kBlockKeys - 1) / kBlockKeys;
  const int64_t blocks = (all + t.sample - 1) / t.sample;
  const int64_t own = blockIdx.x < blocks ? (blocks - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  const auto first_place = [&](int64_t step) {
    return sampled_block(blockIdx.x + step * gridDim.x, t.sample) * kBlockKeys;
  };
  const auto copy = [&](int64_t step) {
    if (step < own) {
      const int64_t begin = first_place(step);
      uint4* to = shared + step % kStages * kStage;
#pragma unroll
      for (int i = 0; i < kStage / kThreads; ++i) {
        const int at = i * kThreads + threadIdx.x, row = at / kChunks, chunk = at % kChunks;
        const bool there = begin + row < keys.size && chunk * 8 < t.head_dim;
        const int64_t slot = there ? slot_of(keys, begin + row) : 0;
        const auto* from = static_cast<const __nv_bfloat16*>(keys.keys) + slot * keys.stride +
                           (there ? chunk * 8 : 0);
        copy_16(to + row * kChunks + (chunk ^ (row & 7)), from, there);
      }
    }
    end_copies();
  };
  if (threadIdx.x == 0) num_found = 0;
  for (int s = 0; s < kStages - 1; ++s) copy(s);
  for (int64_t step = 0; step < own; ++step) {
    wait_for_copies<kStages - 2>();
    const uint4* rows = shared + step % kStages * kStage;
    uint32_t largest = 0;  // of what this thread has copied
#pragma unroll
    for (int i = 0; i < kStage / kThreads; ++i) {
      const int at = i * kThreads + threadIdx.x, row = at / kChunks, chunk = at % kChunks;
      const uint4 bits = rows[row * kChunks + (chunk ^ (row & 7))];
      largest = larger(larger(larger(larger(largest, bits.x), bits.y), bits.z), bits.w);
    }
    largest = __reduce_max_sync(0xffffffffU, largest);
    if (lane == 0) largest_of[step % 2][warp] = largest;
    if (threadIdx.x == 0) many_found[step % 2] = num_found > kMostFound / 2;
    __syncthreads();
    copy(step + kStages - 1);
    if (many_found[step % 2]) {
      consider_all(t, group, found, num_found);
      __syncthreads();
      if (threadIdx.x == 0) num_found = 0;
      __syncthreads();
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = max(largest, largest_of[step % 2][w]);
    const float most = __uint_as_float(largest << 16);
    float reach[kTiles][2];  // approximate scores below it cannot reach the threshold
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 limit = own_limits[tile * kLanes + i];
        reach[tile][i] = __fsub_rd(limit.x, __fadd_ru(__fmul_ru(limit.y, most), 0x1p-120F));
      }
    }
    const int64_t begin = first_place(step);
    for (int m = warp / query_warps; m < kBlockKeys / kTile; m += kWarps / query_warps) {
      float scores[kTiles][4] = {};
#pragma unroll
      for (int s = 0; s < Steps; ++s) {
        const int row = m * kTile + lane % 16, chunk = 2 * s + lane / 16;
        uint32_t a[4];
        load_tile(a, rows + row * kChunks + (chunk ^ (row & 7)));
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) multiply(scores[tile], a, q.b[s][tile]);
      }
      bool any = false;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) any |= !(scores[tile][i] < reach[tile][i % 2]);
      }
      if (!any) continue;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (scores[tile][i] < reach[tile][i % 2]) continue;
          const int j = first + tile * kLanes + lane % 4 * 2 + i % 2;
          const int row = m * kTile + lane / 4 + i / 2 * 8;
          if (j >= total || begin + row >= keys.size) continue;
          const Found one{j, static_cast<uint32_t>(begin + row)};
          const int at = atomicAdd(&num_found, 1);
          if (at < kMostFound) {
            found[at] = one;
          } else {
            consider(t, group, one);
          }
        }
      }
    }
  }
  wait_for_copies<0>();
  __syncthreads();
  consider_all(t, group, found, num_found);
}

template <int Steps>
void launch(const FilterTask& task, int num_processors, cudaStream_t stream) {
  constexpr int kShared = kStages * kBlockKeys * 2 * Steps * 16;
  auto* kernel = filter_mma_kernel<Steps>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  int query_warps = 1;
  while (query_warps < kWarps && query_warps * kWarpQueries < task.queries_per_group) {
    query_warps *= 2;
  }
  const int per_block = query_warps * kWarpQueries;
  const int tiles = (task.queries_per_group + per_block - 1) / per_block;
  const int groups = task.num_rows * task.num_key_heads;
  // All blocks run at once: those of other queries then find the same keys in the cache.
  const int resident = (Steps == 4 ? 2 : 1) * num_processors;
  const int64_t blocks = task.most_keys / task.sample / kBlockKeys + 1;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(
                      blocks, std::max(1, resident / std::min(tiles * groups, resident)))),
                  static_cast<unsigned>(tiles),
                  static_cast<unsigned>(groups));
  kernel<<<grid, kThreads, kShared, stream>>>(task, query_warps);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace

bool uses_matrix_unit(const FilterTask& task) {
  constexpr int kFewestQueries = 9;
  return task.bf16_keys && task.aligned && task.head_dim <= 128 &&
         task.queries_per_group >= kFewestQueries;
}

void filter_mma(const FilterTask& task, int num_processors, cudaStream_t stream) {
  if (task.head_dim <= 64) return launch<4>(task, num_processors, stream);
  launch<8>(task, num_processors, stream);
}

}  // namespace reynard::knn::cuda
