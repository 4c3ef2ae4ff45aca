#include "tests/support/gradients.h"

#include "tests/support/compare.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>

namespace reynard::test {

namespace {

at::Tensor weighted_sum(const at::Tensor& output) {
  const at::Tensor weights = random_normal(output.sizes(), 1234, at::kDouble).to(output.device());
  return (output.to(at::kDouble) * weights).sum();
}

}  // namespace

at::Tensor random_normal(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype);
}

std::vector<at::Tensor> gradients(const TensorFunction& function,
                                  const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.detach().clone().requires_grad_(true));
  }
  return torch::autograd::grad({weighted_sum(function(leaves))}, leaves);
}

testing::AssertionResult gradients_are_right(const TensorFunction& function,
                                             const std::vector<at::Tensor>& inputs,
                                             double tolerance) {
  const std::vector<at::Tensor> analytic = gradients(function, inputs);
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  for (size_t which = 0; which < inputs.size(); ++which) {
    std::vector<at::Tensor> moved;
    for (const at::Tensor& input : inputs) moved.push_back(input.detach().clone());
    const at::Tensor flat = moved[which].view({-1});
    const at::Tensor numeric = at::empty_like(flat);
    for (int64_t i = 0; i < flat.numel(); ++i) {
      const double value = flat[i].item<double>();
      flat[i].fill_(value + kStep);
      const double above = weighted_sum(function(moved)).item<double>();
      flat[i].fill_(value - kStep);
      const double below = weighted_sum(function(moved)).item<double>();
      flat[i].fill_(value);
      numeric[i].fill_((above - below) / (2 * kStep));
    }
    auto same = near(analytic[which], numeric.view(inputs[which].sizes()), tolerance, tolerance);
    if (!same) return same << " in the gradient of input " << which;
  }
  return testing::AssertionSuccess();
}

}  // namespace reynard::test
