#include "reynard/knn/cuda/filter.h"

#include "reynard/knn/cuda/code.cuh"
#include "reynard/knn/cuda/filter_few.h"
#include "reynard/knn/cuda/filter_mma.h"
#include "reynard/tensor/cuda_launch.h"

#include <algorithm>

namespace reynard::knn::cuda {

namespace {

constexpr int kQueryTile = 8;

// Any head dimension and stride: a thread scores one key for some queries.
template <class Element>
__global__ void __launch_bounds__(kBlockKeys) filter_any_kernel(FilterTask t) {
  const int group = blockIdx.z, first = blockIdx.y * kQueryTile;
  const KeyGroup keys = t.group(group);
  const int queries = min(kQueryTile, t.queries_per_group - first);
  const int64_t blocks = (keys.size + kBlockKeys - 1) / kBlockKeys;
  for (int64_t i = blockIdx.x;; i += gridDim.x) {
    const int64_t block = sampled_block(i, t.sample);
    if (i * t.sample >= blocks) return;
    const int64_t place = block * kBlockKeys + threadIdx.x;
    if (place >= keys.size) continue;
    const Element* key =
        static_cast<const Element*>(keys.keys) + slot_of(keys, place) * keys.stride;
    for (int j = 0; j < queries; ++j) {
      const int64_t query = query_index(t, group, first + j);
      const float* q = t.queries + query * t.head_dim;
      float sum = 0;
      for (int d = 0; d < t.head_dim; ++d) sum = plain_step(sum, q[d], to_float(key[d]));
      const Code code = make_code(sum, place);
      if (code >= t.thresholds[query]) append(t, query, code);
    }
  }
}

template <class Element>
__global__ void results_kernel(ResultTask t) {
  const FilterTask& s = t.search;
  const int heads = s.num_key_heads * s.repeat;
  const int64_t total = static_cast<int64_t>(s.num_rows) * s.num_tokens * heads * t.k;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= total) return;
  const Code code = t.codes[i];
  const int64_t query = i / t.k;
  if (code == kNoCode) {
    t.ids[i] = -1;
    t.scores[i] = -CUDART_INF_F;
    return;
  }
  const int row = static_cast<int>(query / heads / s.num_tokens);
  const int group = row * s.num_key_heads + static_cast<int>(query % heads) / s.repeat;
  const KeyGroup keys = s.group(group);
  const int64_t place = place_of(code);
  const Element* key = static_cast<const Element*>(keys.keys) + slot_of(keys, place) * keys.stride;
  const float* q = s.queries + query * s.head_dim;
  float sum = 0;
  for (int d = 0; d < s.head_dim; ++d) sum = plain_step(sum, q[d], to_float(key[d]));
  t.ids[i] = keys.first_id + place;
  t.scores[i] = sum;
}

}  // namespace

void filter(const FilterTask& task, int num_processors, cudaStream_t stream) {
  if (task.most_keys == 0) return;
  if (task.sparse && uses_matrix_unit(task)) return filter_mma(task, num_processors, stream);
  if (task.aligned) return filter_few(task, num_processors, stream);
  const int64_t blocks = (task.most_keys + kBlockKeys - 1) / kBlockKeys / task.sample + 1;
  const int tiles = (task.queries_per_group + kQueryTile - 1) / kQueryTile;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(blocks, num_processors * 16)),
                  static_cast<unsigned>(tiles),
                  static_cast<unsigned>(task.num_rows * task.num_key_heads));
  if (task.bf16_keys) {
    filter_any_kernel<__nv_bfloat16><<<grid, kBlockKeys, 0, stream>>>(task);
  } else {
    filter_any_kernel<float><<<grid, kBlockKeys, 0, stream>>>(task);
  }
  REYNARD_CHECK_LAUNCH();
}

void write_results(const ResultTask& task, cudaStream_t stream) {
  const FilterTask& s = task.search;
  const int64_t total =
      static_cast<int64_t>(s.num_rows) * s.num_tokens * s.num_key_heads * s.repeat * task.k;
  if (total == 0) return;
  constexpr int kThreads = 128;
  const auto blocks = static_cast<unsigned>((total + kThreads - 1) / kThreads);
  if (s.bf16_keys) {
    results_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(task);
  } else {
    results_kernel<float><<<blocks, kThreads, 0, stream>>>(task);
  }
  REYNARD_CHECK_LAUNCH();
}

}  // namespace reynard::knn::cuda
