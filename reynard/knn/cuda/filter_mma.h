#pragma once
// The pass for many queries over bf16 keys: the matrix unit makes approximate scores, and what may
// reach its query's threshold is scored by the definition. docs/architecture.md says why none is
// missed.

#include "reynard/knn/cuda/filter.h"

namespace reynard::knn::cuda {

void filter_mma(const FilterTask& task, int num_processors, cudaStream_t stream);

}  // namespace reynard::knn::cuda
