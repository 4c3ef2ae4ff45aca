#include "tests/support/device.h"

#include "reynard/tensor/cuda.h"
#include "reynard/tensor/error.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace reynard::test {

at::Device test_device() {
  static const at::Device device = [] {
    const char* wanted = std::getenv("REYNARD_TEST_DEVICE");
    if (!wanted || std::string_view(wanted) == "cpu") return at::Device(at::kCPU);
    tensor::open_cuda_library();
    if (!tensor::cuda_available()) throw Error("REYNARD_TEST_DEVICE=cuda: there is no GPU");
    return at::Device(at::kCUDA, 0);
  }();
  return device;
}

namespace {

// libtorch looks for its CUDA part once, at the latest when it first runs backward on the CPU.
struct ChosenFirst : testing::Environment {
  void SetUp() override { test_device(); }
};
[[maybe_unused]] const auto* const chosen_first =
    testing::AddGlobalTestEnvironment(new ChosenFirst);

}  // namespace

}  // namespace reynard::test
