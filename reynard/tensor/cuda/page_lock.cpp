// Locks the pages of host memory for libreynard.so, which knows nothing of CUDA.

#include "reynard/tensor/pinned.h"

#include <cuda_runtime_api.h>

namespace reynard::tensor {

namespace {

const char* lock(void* data, std::size_t bytes) {
  const cudaError_t error = cudaHostRegister(data, bytes, cudaHostRegisterPortable);
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // it is told here: not a later launch's
  return cudaGetErrorString(error);
}

// Where the driver is gone, at the end of a program, so is the lock.
void unlock(void* data) {
  if (cudaHostUnregister(data) != cudaSuccess) cudaGetLastError();  // not a later launch's
}

// While the library is loaded.
const bool kRegistered = [] {
  register_page_lock({.lock = lock, .unlock = unlock});
  return true;
}();

}  // namespace

}  // namespace reynard::tensor
