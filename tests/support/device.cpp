#include "tests/support/device.h"

#include "reynard/tensor/cuda.h"
#include "reynard/tensor/error.h"

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

}  // namespace reynard::test
