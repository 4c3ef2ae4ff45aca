#include "reynard/knn/gpu_search.h"

#include "reynard/tensor/cuda.h"

namespace reynard::knn {

namespace {

constinit tensor::FromCudaLibrary<GpuSearch> registered_search;

}  // namespace

GpuSearch gpu_search() {
  return registered_search.get();
}

void register_gpu_search(GpuSearch search) {
  registered_search.set(search);
}

}  // namespace reynard::knn
