#pragma once
// The check that follows every kernel launch.

#include <cuda_runtime_api.h>
#include <stdexcept>
#include <string>

namespace reynard::attention::cuda {

inline void check_launch(const char* file, int line) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error) +
                           " after a launch at " + file + ":" + std::to_string(line));
}

}  // namespace reynard::attention::cuda

#define REYNARD_CUDA_CHECK_LAUNCH() ::reynard::attention::cuda::check_launch(__FILE__, __LINE__)
