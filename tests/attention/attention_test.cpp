#include "reynard/attention/attention.h"

#include "reynard/tensor/check.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace reynard::attention {
namespace {

using test::expect_same_bits;
using test::on_test_device;
using test::random_inputs;
using test::run_attention;
using test::run_reference;

// Two tokens, one head of one dimension: every number can be followed by hand.
TEST(ForgettingAttention, WeighsThePastByTheGate) {
  const at::Tensor q = on_test_device(at::tensor({1.0F, 2.0F})).reshape({1, 2, 1, 1});
  const at::Tensor k = on_test_device(at::tensor({3.0F, 1.0F})).reshape({1, 2, 1, 1});
  const at::Tensor v = on_test_device(at::tensor({10.0F, 20.0F})).reshape({1, 2, 1, 1});
  const float half = std::log(0.5F);  // the second token halves what lies before it
  const at::Tensor log_gate = on_test_device(at::tensor({0.0F, half})).reshape({1, 2, 1});
  const AttentionOutput result = attention(q, k, v, log_gate);
  // Token 0 sees itself alone; token 1: exp(2*3) * 0.5 for key 0, exp(2*1) for key 1.
  const double past = std::exp(6.0) * 0.5;
  const double self = std::exp(2.0);
  const double expected = (10 * past + 20 * self) / (past + self);
  EXPECT_NEAR(result.out[0][0][0][0].item<double>(), 10, 1e-5);
  EXPECT_NEAR(result.out[0][1][0][0].item<double>(), expected, 1e-4);
  EXPECT_NEAR(result.lse[0][0][1].item<double>(), std::log(past + self), 1e-5);
}

// f64 runs through the definition, whose library matrix products depend on the alignment of memory.
TEST(ForgettingAttention, OpenGatesIsSoftmaxAttention) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    auto inputs = random_inputs({.B = 2, .Tq = 113, .Tk = 113, .H = 4, .G = 2, .D = 64}, dtype);
    inputs.log_gate = at::zeros_like(inputs.log_gate);  // log 1
    const auto forgetting = run_attention(inputs);
    inputs.log_gate = at::Tensor();
    const auto softmax = run_attention(inputs);
    expect_same_bits(forgetting, softmax);
  }
}

}  // namespace
}  // namespace reynard::attention
