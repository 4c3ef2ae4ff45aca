#include "reynard/knn/cuda/filter_few.h"

#include "reynard/knn/cuda/code.cuh"
#include "reynard/knn/cuda/copy_rows.cuh"
#include "reynard/tensor/cuda_launch.h"
#include "reynard/tensor/cuda_limits.h"

#include <algorithm>

namespace reynard::knn::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kStages = 4;  // 16 KB per warp: 3 blocks fill a processor with copies in flight

template <class Element>
struct Chunk {
  static constexpr int kSize = 16 / sizeof(Element);
};

// Values of one chunk as floats.
__device__ inline void widen(const uint4& bits, float (&out)[8], __nv_bfloat16 /*tag*/) {
  const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
  }
}
__device__ inline void widen(const uint4& bits, float (&out)[4], float /*tag*/) {
  out[0] = __uint_as_float(bits.x), out[1] = __uint_as_float(bits.y);
  out[2] = __uint_as_float(bits.z), out[3] = __uint_as_float(bits.w);
}

template <class Element>
constexpr int kRowValues = kColumnBytes / static_cast<int>(sizeof(Element));

// Adds the products of a chunk of a key, in order; values: of query 0, queries `depth4` apart.
template <int Queries, int Size>
__device__ inline void add_products(float (&sum)[Queries],
                                    const float4* values,
                                    int depth4,
                                    const float (&k)[Size]) {
#pragma unroll
  for (int j = 0; j < Queries; ++j) {
#pragma unroll
    for (int i = 0; i < Size / 4; ++i) {
      const float4 four = values[j * depth4 + i];
      sum[j] = plain_step(sum[j], four.x, k[4 * i]);
      sum[j] = plain_step(sum[j], four.y, k[4 * i + 1]);
      sum[j] = plain_step(sum[j], four.z, k[4 * i + 2]);
      sum[j] = plain_step(sum[j], four.w, k[4 * i + 3]);
    }
  }
}

template <class Element, int Queries>
__global__ void __launch_bounds__(kWarps * 32)
    filter_few_kernel(const __grid_constant__ FilterTask t, int columns) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = blockIdx.z, first = blockIdx.y * Queries;
  const KeyGroup keys = t.group(group);
  const int queries = min(Queries, t.queries_per_group - first);
  const int depth = columns * kColumnChunks * Chunk<Element>::kSize;
  auto* q = reinterpret_cast<float*>(shared + kWarps * kStages * kColumn);
  for (int i = threadIdx.x; i < Queries * depth; i += blockDim.x) {
    const int j = i / depth, d = i % depth;
    const bool there = j < queries && d < t.head_dim;
    q[i] = there ? t.queries[query_index(t, group, first + j) * t.head_dim + d] : 0.0F;
  }
  Code threshold[Queries];
  float floor[Queries];
#pragma unroll
  for (int j = 0; j < Queries; ++j) {
    threshold[j] = j < queries ? t.thresholds[query_index(t, group, first + j)] : INT64_MAX;
    floor[j] = j < queries ? score_of(threshold[j]) : CUDART_INF_F;
  }
  __syncthreads();

  // The 32-key pieces of the sample's blocks, by turns among all warps.
  constexpr int kPieces = kBlockKeys / kPieceKeys;
  const int64_t blocks = (keys.size + kBlockKeys - 1) / kBlockKeys;
  // Fewer than 2^32 keys: pieces are counted in 32 bits.
  const int pieces = static_cast<int>((blocks + t.sample - 1) / t.sample) * kPieces;
  const int begin = static_cast<int>(blockIdx.x) * kWarps + warp;
  const int stride = static_cast<int>(gridDim.x) * kWarps;
  const auto first_place = [&](int piece) {
    return sampled_block(piece / kPieces, t.sample) * kBlockKeys + piece % kPieces * kPieceKeys;
  };
  uint4* stages = shared + warp * kStages * kColumn;
  // The next step to copy, and the stages of it and of the next one to score: no step is divided
  // into piece and column.
  int copied_piece = begin, copied_column = 0, copied_stage = 0, stage = 0;
  const auto copy = [&] {
    if (copied_piece < pieces) {
      copy_column<Element>(
          t, keys, first_place(copied_piece), copied_column, stages + copied_stage * kColumn, lane);
      if (++copied_column == columns) copied_column = 0, copied_piece += stride;
    }
    copied_stage = (copied_stage + 1) % kStages;
    end_copies();
  };
  for (int s = 0; s < kStages - 1; ++s) copy();
  for (int piece = begin; piece < pieces; piece += stride) {
    float sum[Queries] = {};
    for (int column = 0; column < columns; ++column) {
      wait_for_copies<kStages - 2>();
      __syncwarp();
      copy();
      const uint4* row = stages + stage * kColumn + lane * kColumnChunks;
      stage = (stage + 1) % kStages;
      const auto* values = reinterpret_cast<const float4*>(q) + column * (kRowValues<Element> / 4);
#pragma unroll
      for (int c = 0; c < kColumnChunks; ++c) {
        float k[Chunk<Element>::kSize];
        widen(row[c ^ (lane & 7)], k, Element());
        add_products(sum, values + c * (Chunk<Element>::kSize / 4), depth / 4, k);
      }
    }
    const int64_t place = first_place(piece) + lane;
#pragma unroll
    for (int j = 0; j < Queries; ++j) {
      if (!(sum[j] < floor[j]) && place < keys.size && j < queries) {
        const Code code = make_code(sum[j], place);
        if (code >= threshold[j]) append(t, query_index(t, group, first + j), code);
      }
    }
  }
  wait_for_copies<0>();
}

template <class Element, int Queries>
void launch(const FilterTask& task, int num_processors, cudaStream_t stream) {
  const int row_bytes = task.head_dim * static_cast<int>(sizeof(Element));
  const int columns = (row_bytes + kColumnBytes - 1) / kColumnBytes;
  const int shared = kWarps * kStages * kPieceKeys * kColumnBytes +
                     Queries * columns * (kColumnBytes / static_cast<int>(sizeof(Element))) * 4;
  auto* kernel = filter_few_kernel<Element, Queries>;
  // Not of this call: between here and the launch another thread may search longer or shorter keys.
  cudaFuncSetAttribute(kernel,
                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(tensor::most_shared_bytes()));
  const int tiles = (task.queries_per_group + Queries - 1) / Queries;
  const int groups = task.num_rows * task.num_key_heads;
  const int64_t blocks =
      (task.most_keys / task.sample + kWarps * kPieceKeys) / (kWarps * kPieceKeys) + 1;
  const int64_t wanted =
      std::max(1, 3 * num_processors / std::min(tiles * groups, 3 * num_processors));
  const dim3 grid(static_cast<unsigned>(std::min(blocks, wanted)),
                  static_cast<unsigned>(tiles),
                  static_cast<unsigned>(groups));
  kernel<<<grid, kWarps * 32, shared, stream>>>(task, columns);
  REYNARD_CHECK_LAUNCH();
}

template <class Element>
void launch_for(const FilterTask& task, int num_processors, cudaStream_t stream) {
  const int queries = task.queries_per_group;
  if (queries == 1) return launch<Element, 1>(task, num_processors, stream);
  if (queries == 2) return launch<Element, 2>(task, num_processors, stream);
  if (queries <= 4) return launch<Element, 4>(task, num_processors, stream);
  launch<Element, 8>(task, num_processors, stream);
}

}  // namespace

void filter_few(const FilterTask& task, int num_processors, cudaStream_t stream) {
  if (task.bf16_keys) return launch_for<__nv_bfloat16>(task, num_processors, stream);
  launch_for<float>(task, num_processors, stream);
}

}  // namespace reynard::knn::cuda
