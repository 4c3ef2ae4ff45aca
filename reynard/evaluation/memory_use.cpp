#include "reynard/evaluation/memory_use.h"

#include <sys/resource.h>

namespace reynard::evaluation {

int64_t peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;  // Linux counts KiB
}

}  // namespace reynard::evaluation
