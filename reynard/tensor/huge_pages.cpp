#include "reynard/tensor/huge_pages.h"

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <sys/mman.h>

#include <algorithm>

namespace reynard::tensor {

void advise_huge_pages(void* data, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const int64_t skipped = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  const int64_t whole = (bytes - skipped) / kHugePageBytes * kHugePageBytes;
  if (whole > 0) madvise(static_cast<char*>(data) + skipped, whole, MADV_HUGEPAGE);
}

at::Tensor HugePageArena::empty(at::IntArrayRef sizes, at::ScalarType dtype) {
  constexpr int64_t kBlockBytes = 32 * kHugePageBytes, kLineBytes = 64;
  const int64_t bytes =
      c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
  if (!block_.defined() || used_ + bytes > block_.numel()) {
    // With room for a whole number of huge pages wherever it begins.
    block_ = at::empty({std::max(bytes, kBlockBytes) + kHugePageBytes}, at::kByte);
    advise_huge_pages(block_.data_ptr(), block_.numel());
    used_ = 0;
  }
  const at::Tensor own = block_.narrow(0, used_, bytes).view(dtype).view(sizes);
  used_ += (bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
  return own;
}

}  // namespace reynard::tensor
