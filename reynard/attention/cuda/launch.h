#pragma once
// The check that follows every kernel launch, and launches that overlap.

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

// A kernel that may start while the one before it in the stream still runs, on GPUs that can do
// so (Hopper and later): it calls wait_for_kernel_before() before it reads what that one wrote.
template <class... Parameters>
void launch_early_with_shared(void (*kernel)(Parameters...),
                              dim3 blocks,
                              int threads,
                              int shared_bytes,
                              cudaStream_t stream,
                              bool overlaps,
                              Parameters... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks, config.blockDim = dim3(threads), config.stream = stream;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &early, config.numAttrs = overlaps ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class... Parameters>
void launch_early(void (*kernel)(Parameters...),
                  dim3 blocks,
                  int threads,
                  cudaStream_t stream,
                  bool overlaps,
                  Parameters... arguments) {
  launch_early_with_shared(kernel, blocks, threads, 0, stream, overlaps, arguments...);
}

}  // namespace reynard::attention::cuda

#define REYNARD_CUDA_CHECK_LAUNCH() ::reynard::attention::cuda::check_launch(__FILE__, __LINE__)
