#include "reynard/training/kept_memory.h"

#include <malloc.h>

namespace reynard::training {

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);         // large blocks come from the heap too,
  mallopt(M_TRIM_THRESHOLD, -1);  // which never shrinks
}

}  // namespace reynard::training
