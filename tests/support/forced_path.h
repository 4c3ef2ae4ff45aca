#pragma once
// Tests that run on every instruction-set path of this machine.

#include "reynard/attention/cpu/path.h"

#include <cstdlib>
#include <string>
#include <vector>

namespace reynard::test {

// Names of the paths that this machine has, for testing::ValuesIn.
inline std::vector<std::string> path_names() {
  std::vector<std::string> names;
  for (const attention::cpu::Path& path : attention::cpu::available_paths()) {
    names.emplace_back(path.name);
  }
  return names;
}

// Forces a path while it lives.
class ForcedPath {
 public:
  explicit ForcedPath(const std::string& name) {
    if (const char* before = std::getenv(kVariable)) before_ = before;
    setenv(kVariable, name.c_str(), 1);
  }
  ~ForcedPath() {
    if (before_.empty()) {
      unsetenv(kVariable);
    } else {
      setenv(kVariable, before_.c_str(), 1);
    }
  }
  ForcedPath(const ForcedPath&) = delete;
  ForcedPath& operator=(const ForcedPath&) = delete;

 private:
  static constexpr const char* kVariable = "REYNARD_CPU_PATH";
  std::string before_;
};

}  // namespace reynard::test
