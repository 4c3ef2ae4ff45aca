#include "cli/passive_waiting.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace reynard::cli {

namespace {

constexpr std::array<std::string_view, 3> kDecoding = {"generate", "chat", "serve"};
// Looks at the flag before a thread sleeps: some 0.1 ms, longer than what one thread does alone
// between two parallel loops of a decoded token.
constexpr const char* kSpins = "5000";

}  // namespace

void wait_passively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  if (std::ranges::find(kDecoding, argv[1]) != kDecoding.end()) {
    setenv("GOMP_SPINCOUNT", kSpins, 1);
  }
  execv("/proc/self/exe", argv);  // returns only where there is no /proc: then threads spin
}

}  // namespace reynard::cli
