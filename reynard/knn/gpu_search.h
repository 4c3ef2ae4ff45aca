#pragma once
// How libreynard.so reaches the exact search of a GPU: libreynard_cuda.so registers it while it is
// loaded.

#include "reynard/knn/problem.h"

namespace reynard::knn {

using GpuSearch = SearchResult (*)(const Problem& problem);

// Opens libreynard_cuda.so. Throws reynard::Error where it cannot be opened.
GpuSearch gpu_search();
void register_gpu_search(GpuSearch search);

}  // namespace reynard::knn
