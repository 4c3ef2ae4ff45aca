#pragma once
// The device that a test program runs on: the CPU, or what REYNARD_TEST_DEVICE says. The same suite
// serves both: inputs are drawn on the CPU from their seed and then moved.

#include <ATen/core/Tensor.h>

namespace reynard::test {

// Throws reynard::Error when REYNARD_TEST_DEVICE is cuda and there is no GPU or no
// libreynard_cuda.so.
at::Device test_device();

inline at::Tensor on_test_device(const at::Tensor& t) {
  return t.to(test_device());
}

}  // namespace reynard::test
