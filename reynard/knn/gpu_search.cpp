#include "reynard/knn/gpu_search.h"

#include "reynard/tensor/cuda.h"

namespace reynard::knn {

namespace {

GpuSearch& registered() {
  static GpuSearch search = nullptr;
  return search;
}

}  // namespace

GpuSearch gpu_search() {
  if (registered() == nullptr) tensor::open_cuda_library();
  TORCH_INTERNAL_ASSERT(registered() != nullptr);
  return registered();
}

void register_gpu_search(GpuSearch search) {
  registered() = search;
}

}  // namespace reynard::knn
