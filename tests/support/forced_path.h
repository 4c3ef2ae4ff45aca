#pragma once
// Tests that run on every instruction-set path of this machine.

#include "reynard/attention/cpu/path.h"
#include "reynard/tensor/cpu_features.h"
#include "tests/support/device.h"

#include <gtest/gtest.h>

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

// Forces a path, "" for the best, while it lives.
class ForcedPath {
 public:
  explicit ForcedPath(const std::string& name) { tensor::force_cpu_path(name); }
  ~ForcedPath() { tensor::force_cpu_path(before_); }
  ForcedPath(const ForcedPath&) = delete;
  ForcedPath& operator=(const ForcedPath&) = delete;

 private:
  const std::string before_ = tensor::forced_cpu_path();
};

// One path after the other, each on inputs in the CPU's memory.
class OnEachCpuPath : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!test_device().is_cpu()) GTEST_SKIP() << "needs REYNARD_TEST_DEVICE=cpu";
  }

 private:
  ForcedPath forced_{GetParam()};
};

}  // namespace reynard::test
