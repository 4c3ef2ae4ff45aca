#include "reynard/evaluation/freed_memory.h"

#include <malloc.h>

namespace reynard::evaluation {

void return_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);   // set once, it stays where it is
  mallopt(M_TRIM_THRESHOLD, 16 << 20);  // smaller blocks: the heap keeps some
}

}  // namespace reynard::evaluation
