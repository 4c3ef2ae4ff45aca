#pragma once
// What a search begins with, and of the candidates that a pass has found: a query's k-th best,
// which is the next pass's threshold, or its k best in order. One launch for all queries. Plain
// pointers, no torch.

#include "reynard/knn/cuda/filter.h"

namespace reynard::knn::cuda {

inline constexpr int kMostSorted = 1024;  // codes that fit into a block's shared memory with ease

// Raises thresholds to the code of that rank where so many candidates were stored, and empties the
// lists: counts are 0 afterwards.
void raise_thresholds(
    const FilterTask& task, Code* thresholds, int* counts, int rank, cudaStream_t stream);

// best (B, Tq, H, k): the k best candidates, best first, then kNoCode; k <= kMostSorted. *overflow
// becomes 1 where a list was too short for what the pass found.
void sort_best(const FilterTask& task, Code* best, int k, int* overflow, cudaStream_t stream);

// What a search begins with, in one launch.
struct Beginning {
  Code* thresholds = nullptr;  // (B, Tq, H): become kNoCode
  int* counts = nullptr;       // (B * Tq * H + 1): become 0
  // null, or margins (B, Tq, H) of FilterTask: become
  // margin_factor (|q|_1 + |q as bf16|_1) + |q - q as bf16|_1.
  float* margins = nullptr;
  float margin_factor = 0;
};
void begin_search(const FilterTask& task, const Beginning& to, cudaStream_t stream);

}  // namespace reynard::knn::cuda
