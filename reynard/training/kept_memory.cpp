#include "reynard/training/kept_memory.h"

#include "reynard/tensor/huge_pages.h"

#include <malloc.h>
#include <unistd.h>

#include <cstdlib>

namespace reynard::training {

namespace {

// The heap grows by half of the machine's memory, of which nothing is touched: a freed block at its
// end is where later ones come from. A sanitizer would note the state of every byte of it.
void ask_for_huge_pages() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} / 2 * sysconf(_SC_PAGESIZE);
  void* const block = std::malloc(bytes);
  if (block == nullptr) return;  // a limit on address space: small pages work too
  tensor::advise_huge_pages(block, bytes);
  std::free(block);
#endif
}

}  // namespace

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);         // large blocks come from the heap too,
  mallopt(M_TRIM_THRESHOLD, -1);  // which never shrinks
  ask_for_huge_pages();
}

}  // namespace reynard::training
