#pragma once
// Kernels that start while the one before them in the stream ends (programmatic launches, on
// Hopper; elsewhere plain launches): a microsecond less between two kernels. Such a kernel calls
// wait_for_kernel_before() in every block before it writes, and before it reads what the kernel
// before it, or one that may still run then, writes. A plain launch waits for all before it, so
// behind one a kernel may read, before its wait, all but what that launch writes. Where every block
// of a kernel lets the next one start only behind its own wait, that one may read, and write over,
// what came before; what the kernel itself writes it must be told of otherwise.

#include <cuda_runtime_api.h>

namespace reynard::tensor {

// Later GPUs run what was compiled for Ampere, as PTX, in which there are no waits.
inline bool starts_kernels_early() {
  constexpr int kHopper = 9;
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major == kHopper;
}

template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...),
                  dim3 blocks,
                  unsigned threads,
                  size_t shared_bytes,
                  cudaStream_t stream,
                  const Arguments&... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks, config.blockDim = dim3(threads), config.stream = stream;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &early, config.numAttrs = starts_kernels_early() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

// The kernel after this one may start now.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What the kernel before wrote is there.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace reynard::tensor
