#include "reynard/tensor/pinned.h"

#include "reynard/tensor/cuda.h"
#include "reynard/tensor/error.h"
#include "reynard/tensor/huge_pages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

namespace reynard::tensor {

namespace {

constinit FromCudaLibrary<PageLock> registered_page_lock;

}  // namespace

void register_page_lock(PageLock lock) {
  registered_page_lock.set(lock);
}

at::Tensor pinned_empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  const PageLock page_lock = registered_page_lock.get();
  const at::Tensor block = at::empty(sizes, dtype);
  const std::size_t bytes = block.nbytes();
  if (bytes == 0) return block;
  advise_huge_pages(block.data_ptr(), static_cast<int64_t>(bytes));
  if (const char* obstacle = page_lock.lock(block.data_ptr(), bytes)) {
    throw Error(fmt::format(
        "memory: {} MB of host memory cannot be page-locked: {}; free some, or keep the "
        "memory on the GPU (--memory-place device)",
        bytes >> 20,
        obstacle));
  }
  return at::from_blob(
      block.data_ptr(),
      sizes,
      [block, page_lock](void* data) { page_lock.unlock(data); },
      block.options());
}

}  // namespace reynard::tensor
