#pragma once
// Page-locked host memory: a GPU reads and writes it at the speed of the bus, and it has the size
// that was asked for (torch's allocator rounds up to a power of two: of 9 GB it locks 16).

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace reynard::tensor {

// Uninitialised, on the CPU, page-locked as long as it lives. Opens libreynard_cuda.so. Throws
// reynard::Error where the memory cannot be locked.
at::Tensor pinned_empty(at::IntArrayRef sizes, at::ScalarType dtype);

// How libreynard_cuda.so, which knows of CUDA, locks the pages of memory; it registers itself while
// it is loaded.
struct PageLock {
  // Null, or why it cannot be locked.
  const char* (*lock)(void* data, std::size_t bytes) = nullptr;
  void (*unlock)(void* data) = nullptr;
};
void register_page_lock(PageLock lock);

}  // namespace reynard::tensor
