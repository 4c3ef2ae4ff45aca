#pragma once
// What a launch may ask of the current GPU. For files that are compiled for a GPU.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace reynard::tensor {

// Shared memory that a block may have where its launch asks for it.
inline int64_t most_shared_bytes() {
  int device = 0, most = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return most;
}

}  // namespace reynard::tensor
