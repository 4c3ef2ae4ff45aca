#pragma once
// The check that follows every kernel launch. For files that are compiled for a GPU.

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace reynard::tensor {

inline void check_launch(const char* file, int line) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error) +
                           " after a launch at " + file + ":" + std::to_string(line));
}

}  // namespace reynard::tensor

#define REYNARD_CHECK_LAUNCH() ::reynard::tensor::check_launch(__FILE__, __LINE__)
