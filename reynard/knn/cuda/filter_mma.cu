#include "reynard/knn/cuda/filter_mma.h"

#include "reynard/knn/cuda/code.cuh"
#include "reynard/knn/cuda/copy_rows.cuh"
#include "reynard/tensor/cuda_launch.h"
#include "reynard/tensor/cuda_limits.h"

#include <algorithm>

namespace reynard::knn::cuda {

namespace {

// A warp multiplies 64 queries (32 of longer rows) of its own, which stay in registers, by 16 keys
// at a time. Warps of a team share what they copy; a warp whose queries are all of a block's is a
// team by itself and waits for nobody.

constexpr int kWarps = 4, kThreads = kWarps * 32;
static_assert(kWarps * kPieceKeys == kBlockKeys, "a block's warps copy a block of keys");
constexpr int kTileKeys = 16, kTileQueries = 16;  // of a tile of scores
constexpr int kPieceTiles = kPieceKeys / kTileKeys;
constexpr int kPeriod = 64;       // blocks of keys whose largest |k_d| is taken together
constexpr int kMostWaiting = 64;  // keys that wait in a warp to be scored by the definition
constexpr int kFound = kMostWaiting + 32;

// So many tiles of queries fit into a warp's registers.
template <int Steps>
constexpr int kTiles = Steps == 4 ? 4 : 2;
template <int Steps>
constexpr int kWarpQueries = kTiles<Steps>* kTileQueries;
template <int Steps>
constexpr int kResident = Steps == 4 ? 3 : 2;  // blocks of a processor
template <int Steps>
constexpr int kStages = Steps == 4 ? 4 : 3;

// A key whose approximate score reaches its query's threshold.
struct Found {
  int query;  // of the group
  uint32_t place;
};

// D (queries x keys) += A (16 queries x 16) B (16 x 8 keys).
__device__ inline void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline void load_tile(uint32_t (&b)[4], const uint4* address) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(address));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(at));
}

__device__ inline uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

// Of each half: the largest |value| of two packed ones; NaN is the largest.
__device__ inline __nv_bfloat162 larger(__nv_bfloat162 largest, uint32_t two) {
  return __hmax2_nan(largest, __habs2(*reinterpret_cast<const __nv_bfloat162*>(&two)));
}
// Bits of the larger half.
__device__ inline uint32_t larger_half(__nv_bfloat162 two) {
  const uint32_t bits = *reinterpret_cast<const uint32_t*>(&two);
  return max(bits & 0xffffU, bits >> 16);
}

// A warp's queries as left operands: this thread's rows are lane / 4 + {0, 8} of each tile.
template <int Steps>
struct Queries {
  uint32_t a[Steps][kTiles<Steps>][4];
};

template <int Steps>
__device__ void load_queries(const FilterTask& t, int group, int first, Queries<Steps>& out) {
  const int lane = threadIdx.x % 32;
  const auto row = [&](int j) {
    return j < t.queries_per_group ? t.queries + query_index(t, group, j) * t.head_dim : nullptr;
  };
  const auto two = [&](const float* q, int d) {
    const bool there = q != nullptr && d < t.head_dim;
    return there ? pack(q[d], q[d + 1]) : 0;
  };
#pragma unroll
  for (int tile = 0; tile < kTiles<Steps>; ++tile) {
    const float* upper = row(first + tile * kTileQueries + lane / 4);
    const float* lower = row(first + tile * kTileQueries + lane / 4 + 8);
#pragma unroll
    for (int s = 0; s < Steps; ++s) {
      const int d = s * 16 + lane % 4 * 2;
      out.a[s][tile][0] = two(upper, d);
      out.a[s][tile][1] = two(lower, d);
      out.a[s][tile][2] = two(upper, d + 8);
      out.a[s][tile][3] = two(lower, d + 8);
    }
  }
}

// Approximate scores below it cannot reach the threshold, where no |k_d| exceeds `most` (bf16
// bits).
template <int Tiles>
__device__ inline void set_reach(float (&reach)[Tiles][2], const float2* limits, uint32_t most) {
  const float largest = __uint_as_float(most << 16);
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 limit = limits[tile * kTileQueries + i * 8];
      reach[tile][i] = __fsub_rd(limit.x, __fadd_ru(__fmul_ru(limit.y, largest), 0x1p-120F));
    }
  }
}

// Scores a key by the definition and keeps it if it reaches the threshold.
__device__ __noinline__ void consider(const FilterTask& t, int group, Found found) {
  const int64_t query = query_index(t, group, found.query);
  const KeyGroup& keys = t.group(group);
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

// What waits is scored by all lanes, one key each.
__device__ inline void consider_all(const FilterTask& t, int group, const Found* found, int size) {
  __syncwarp();
  for (int i = threadIdx.x % 32; i < size; i += 32) consider(t, group, found[i]);
  __syncwarp();
}

// Waits for the warps that share keys.
__device__ inline void join_team(int team, int warps) {
  if (warps == 1) return __syncwarp();
  asm volatile("bar.sync %0, %1;\n" ::"r"(team + 1), "r"(warps * 32) : "memory");
}

template <int Steps>
__global__ void __launch_bounds__(kThreads, kResident<Steps>)
    filter_mma_kernel(const __grid_constant__ FilterTask t, int team_warps) {
  constexpr int kColumns = Steps / 4;
  constexpr int kPiece = kColumns * kColumn;
  extern __shared__ uint4 shared[];
  __shared__ float2 limits[kWarps * kWarpQueries<Steps>];  // a query's threshold and margin
  __shared__ Found found[kWarps][kFound];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int team = warp / team_warps, member = warp % team_warps;
  const int group = blockIdx.z;
  const KeyGroup keys = t.group(group);
  const int block_first = blockIdx.y * team_warps * kWarpQueries<Steps>;
  const int first = block_first + member * kWarpQueries<Steps>;
  const int total = t.queries_per_group;

  Queries<Steps> q;
  load_queries<Steps>(t, group, first, q);
  for (int i = threadIdx.x; i < team_warps * kWarpQueries<Steps>; i += kThreads) {
    const int j = block_first + i;
    const int64_t query = j < total ? query_index(t, group, j) : 0;
    limits[i] = j < total ? float2{score_of(t.thresholds[query]), t.margins[query]}
                          : float2{CUDART_INF_F, 0.0F};
  }
  __syncthreads();
  const float2* own_limits = limits + member * kWarpQueries<Steps> + lane / 4;

  const int64_t all = (keys.size + kBlockKeys - 1) / kBlockKeys;
  // Fewer than 2^32 keys: blocks are counted in 32 bits.
  const int blocks = static_cast<int>((all + t.sample - 1) / t.sample);
  const int stride = static_cast<int>(gridDim.x);
  int copied = static_cast<int>(blockIdx.x), copied_stage = 0, stage = 0;
  const auto copy = [&] {
    if (copied < blocks) {
      const int64_t begin = sampled_block(copied, t.sample) * kBlockKeys + warp * kPieceKeys;
      uint4* to = shared + (copied_stage * kWarps + warp) * kPiece;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        copy_column<__nv_bfloat16>(t, keys, begin, c, to + c * kColumn, lane);
      }
    }
    copied += stride;
    copied_stage = (copied_stage + 1) % kStages<Steps>;
    end_copies();
  };
  for (int s = 0; s < kStages<Steps> - 1; ++s) copy();

  // `reach` holds for keys whose values are at most `most`; `seen` are the largest since it was
  // set.
  float reach[kTiles<Steps>][2];
  uint32_t most = 0;
  auto seen = __float2bfloat162_rn(0.0F);
  set_reach(reach, own_limits, most);
  int waiting = 0, until_reset = kPeriod;
  // Lane's row of a load of 16 keys, and its chunk's place in the row.
  const int row = lane / 16 * 8 + lane % 8, place = lane / 8 % 2 ^ lane % 8;
  for (int block = static_cast<int>(blockIdx.x); block < blocks; block += stride) {
    wait_for_copies<kStages<Steps> - 2>();
    join_team(team, team_warps);
    copy();
    const uint4* pieces = shared + (stage * kWarps + team * team_warps) * kPiece;
    stage = (stage + 1) % kStages<Steps>;
    if (--until_reset == 0) {
      until_reset = kPeriod;
      most = __reduce_max_sync(0xffffffffU, larger_half(seen));
      seen = __float2bfloat162_rn(0.0F);
      set_reach(reach, own_limits, most);
    }
#pragma unroll 1
    for (int tile = 0; tile < team_warps * kPieceTiles; ++tile) {
      const uint4* rows = pieces + tile / kPieceTiles * kPiece +
                          (tile % kPieceTiles * kTileKeys + row) * kColumnChunks;
      float scores[kTiles<Steps>][2][4] = {};
#pragma unroll
      for (int s = 0; s < Steps; ++s) {
        uint32_t b[4];
        load_tile(b, rows + s / 4 * kColumn + (s % 4 * 2 ^ place));
#pragma unroll
        for (int i = 0; i < 4; ++i) seen = larger(seen, b[i]);
#pragma unroll
        for (int m = 0; m < kTiles<Steps>; ++m) {
          multiply(scores[m][0], q.a[s][m], b);
          multiply(scores[m][1], q.a[s][m], b + 2);
        }
      }
      bool any = larger_half(seen) > most;
#pragma unroll
      for (int m = 0; m < kTiles<Steps>; ++m) {
#pragma unroll
        for (int i = 0; i < 8; ++i) any |= !(scores[m][i / 4][i % 4] < reach[m][i % 4 / 2]);
      }
      if (!__any_sync(0xffffffffU, any)) continue;
      most = max(most, __reduce_max_sync(0xffffffffU, larger_half(seen)));
      set_reach(reach, own_limits, most);
      const int64_t begin = sampled_block(block, t.sample) * kBlockKeys +
                            team * team_warps * kPieceKeys + tile * kTileKeys + lane % 4 * 2;
      uint32_t reached = 0;
#pragma unroll
      for (int m = 0; m < kTiles<Steps>; ++m) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (!(scores[m][i / 4][i % 4] < reach[m][i % 4 / 2])) reached |= 1U << (m * 8 + i);
        }
      }
      while (__any_sync(0xffffffffU, reached != 0)) {
        const int bit = __ffs(static_cast<int>(reached)) - 1, i = bit % 8;
        const int j = first + bit / 8 * kTileQueries + lane / 4 + i % 4 / 2 * 8;
        const int64_t key = begin + i / 4 * 8 + i % 2;
        const bool one = reached != 0 && j < total && key < keys.size;
        const uint32_t lanes = __ballot_sync(0xffffffffU, one);
        if (one) {
          found[warp][waiting + __popc(lanes & ((1U << lane) - 1))] = {j,
                                                                       static_cast<uint32_t>(key)};
        }
        reached &= reached - 1;
        waiting += __popc(lanes);
        if (waiting <= kMostWaiting) continue;
        consider_all(t, group, found[warp], waiting);
        waiting = 0;
      }
    }
  }
  wait_for_copies<0>();
  consider_all(t, group, found[warp], waiting);
}

template <int Steps>
constexpr int kStageBytes = kStages<Steps>* kBlockKeys * 2 * Steps * 16;
// With the queries' limits and what each warp found: 100 KB for 128 dimensions.
template <int Steps>
constexpr int kSharedBytes = kStageBytes<Steps> +
                             kWarps* static_cast<int>(kWarpQueries<Steps> * sizeof(float2) +
                                                      kFound * sizeof(Found));

bool has_shared_memory(int bytes) {
  return bytes <= tensor::most_shared_bytes();
}

template <int Steps>
void launch(const FilterTask& task, int num_processors, cudaStream_t stream) {
  constexpr int kShared = kStageBytes<Steps>;
  auto* kernel = filter_mma_kernel<Steps>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  int team_warps = 1;
  while (team_warps < kWarps && team_warps * kWarpQueries<Steps> < task.queries_per_group) {
    team_warps *= 2;
  }
  const int per_block = team_warps * kWarpQueries<Steps>;
  const int tiles = (task.queries_per_group + per_block - 1) / per_block;
  const int groups = task.num_rows * task.num_key_heads;
  // All blocks run at once: those of other queries then find the same keys in the cache.
  const int resident = kResident<Steps> * num_processors;
  const int64_t blocks = task.most_keys / task.sample / kBlockKeys + 1;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(
                      blocks, std::max(1, resident / std::min(tiles * groups, resident)))),
                  static_cast<unsigned>(tiles),
                  static_cast<unsigned>(groups));
  kernel<<<grid, kThreads, kShared, stream>>>(task, team_warps);
  REYNARD_CHECK_LAUNCH();
}

}  // namespace

bool uses_matrix_unit(const FilterTask& task) {
  constexpr int kFewestQueries = 5;
  return task.bf16_keys && task.aligned && task.head_dim <= 128 &&
         task.queries_per_group >= kFewestQueries &&
         has_shared_memory(task.head_dim <= 64 ? kSharedBytes<4> : kSharedBytes<8>);
}

void filter_mma(const FilterTask& task, int num_processors, cudaStream_t stream) {
  if (task.head_dim <= 64) return launch<4>(task, num_processors, stream);
  launch<8>(task, num_processors, stream);
}

}  // namespace reynard::knn::cuda
