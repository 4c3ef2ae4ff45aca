#include "cli/passive_waiting.h"

#include <unistd.h>

#include <cstdlib>

namespace reynard::cli {

void wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // returns only where there is no /proc: then threads spin
}

}  // namespace reynard::cli
