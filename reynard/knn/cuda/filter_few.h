#pragma once
// The pass for few queries, and for any where every key is a candidate: every score is made by the
// definition while the keys stream by, which hides behind the bandwidth of memory. Needs aligned
// rows.

#include "reynard/knn/cuda/filter.h"

namespace reynard::knn::cuda {

void filter_few(const FilterTask& task, int num_processors, cudaStream_t stream);

}  // namespace reynard::knn::cuda
