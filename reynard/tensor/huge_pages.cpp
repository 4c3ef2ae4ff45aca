#include "reynard/tensor/huge_pages.h"

#include <sys/mman.h>

namespace reynard::tensor {

void advise_huge_pages(void* data, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const int64_t skipped = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  const int64_t whole = (bytes - skipped) / kHugePageBytes * kHugePageBytes;
  if (whole > 0) madvise(static_cast<char*>(data) + skipped, whole, MADV_HUGEPAGE);
}

}  // namespace reynard::tensor
