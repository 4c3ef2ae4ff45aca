#pragma once
// Tests of row operators that run on every instruction set of this machine.

#include "reynard/ops/cpu/row_path.h"
#include "reynard/tensor/cpu_features.h"
#include "tests/support/device.h"
#include "tests/support/forced_path.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace reynard::test {

// For testing::ValuesIn. A GPU has one path.
inline std::vector<std::string> row_path_names() {
  return test_device().is_cpu() ? ops::cpu::available_row_paths()
                                : std::vector<std::string>{"cuda"};
}

// Runs with each instruction set: the operators ask for the path at every call.
class OnEachRowPath : public testing::TestWithParam<std::string> {
 private:
  ForcedPath forced_{test_device().is_cpu() ? GetParam() : tensor::forced_cpu_path()};
};

}  // namespace reynard::test
