#pragma once
// Analytic gradients against central differences in f64.

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace reynard::test {

using TensorFunction = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

// Gradients of sum(function(inputs) * weights) with fixed random weights in every input, by
// autograd, with the inputs as leaves.
std::vector<at::Tensor> gradients(const TensorFunction& function,
                                  const std::vector<at::Tensor>& inputs);

// The same gradients by central differences; inputs f64 and small.
testing::AssertionResult gradients_are_right(const TensorFunction& function,
                                             const std::vector<at::Tensor>& inputs,
                                             double tolerance = 1e-6);

// N(0, 1) numbers from the seed: f64, cast to dtype.
at::Tensor random_normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kDouble);

}  // namespace reynard::test

#define EXPECT_GRADIENTS_RIGHT(function, ...) \
  EXPECT_TRUE(::reynard::test::gradients_are_right(function, __VA_ARGS__))
