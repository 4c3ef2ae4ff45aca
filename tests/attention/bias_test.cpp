#include "reynard/attention/bias.h"

#include "reynard/tensor/check.h"
#include "tests/support/attention_inputs.h"
#include "tests/support/compare.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

namespace reynard::attention {
namespace {

at::Tensor gates(std::initializer_list<float> values) {
  return at::tensor(values).reshape({1, -1, 1});
}

TEST(GateSums, AreRunningSums) {
  const at::Tensor sums = gate_sums(gates({-1, -0.5, 0, -2}));
  EXPECT_BITWISE_EQUAL(sums.reshape(-1), at::tensor({-1.0, -1.5, -1.5, -3.5}, at::kDouble));
}

// A single f32 running sum is off by up to 1.7e-2 at this length.
TEST(GateSums, StayExactOverLongSequences) {
  const int64_t T = 65536;
  const float gate = std::log(0.9F);
  const at::Tensor sums = gate_sums(at::full({1, T, 1}, gate, at::kFloat));
  EXPECT_NEAR(sums[0][0][T - 1].item<double>(), static_cast<double>(gate) * T, 1e-7);
}

// More positions and heads than a kernel takes at once.
TEST(GateSums, GoOnFromPieceToPiece) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor drawn = test::random_inputs({.B = 2, .Tk = 1111, .H = 37}).log_gate.to(dtype);
    const at::Tensor exact = drawn.to(at::kDouble).cumsum(1).transpose(1, 2);
    EXPECT_TENSORS_NEAR(gate_sums(drawn), exact, 1e-9, 0);
    // What follows changes nothing before it.
    const at::Tensor prefix = drawn.slice(1, 0, 700).contiguous();
    EXPECT_BITWISE_EQUAL(gate_sums(prefix), gate_sums(drawn).slice(2, 0, 700));
  }
}

TEST(GateSums, GradientIsTheReverseRunningSum) {
  const at::Tensor log_gate = gates({-1, -0.5, -0.25, -2}).requires_grad_(true);
  gate_sums(log_gate).backward(
      at::tensor({1.0, 10.0, 100.0, 1000.0}, at::kDouble).reshape({1, 1, 4}));
  EXPECT_BITWISE_EQUAL(log_gate.grad().reshape(-1),
                       at::tensor({1111.0F, 1110.0F, 1100.0F, 1000.0F}));
}

TEST(GateSums, RestartTheirGradientWhereADocumentBegins) {
  const at::Tensor log_gate = gates({-1, -0.5, -0.25, -2}).requires_grad_(true);
  const at::Tensor first_key = at::tensor({0, 0, 2, 2}, at::kInt).unsqueeze(0);
  gate_sums(log_gate, first_key)
      .backward(at::tensor({1.0, 10.0, 100.0, 1000.0}, at::kDouble).reshape({1, 1, 4}));
  EXPECT_BITWISE_EQUAL(log_gate.grad().reshape(-1), at::tensor({0.0F, 10.0F, 0.0F, 1000.0F}));
}

TEST(GateSums, ClampShutGatesWithoutGradient) {
  const float shut = -std::numeric_limits<float>::infinity();
  const at::Tensor log_gate = gates({-1, shut, -2000, -1000}).requires_grad_(true);
  const at::Tensor sums = gate_sums(log_gate);
  EXPECT_BITWISE_EQUAL(sums.reshape(-1).detach(),
                       at::tensor({-1.0, -1001.0, -2001.0, -3001.0}, at::kDouble));
  sums.backward(at::ones({1, 1, 4}, at::kDouble));
  EXPECT_BITWISE_EQUAL(log_gate.grad().reshape(-1), at::tensor({4.0F, 0.0F, 0.0F, 1.0F}));
}

TEST(GateSums, RejectOtherShapesAndTypes) {
  EXPECT_THROW(gate_sums(at::zeros({2, 3})), Error);
  EXPECT_THROW(gate_sums(at::zeros({2, 3, 4}, at::kBFloat16)), Error);
  const at::Tensor log_gate = at::zeros({3, 4, 2});
  EXPECT_THROW(gate_sums(log_gate, at::zeros({1, 4}, at::kInt)), Error);
  EXPECT_THROW(gate_sums(log_gate, at::zeros({3, 5}, at::kInt)), Error);
  EXPECT_THROW(gate_sums(log_gate, at::zeros({3, 4}, at::kLong)), Error);
}

TEST(AlibiSums, FallByTheSlope) {
  const at::Tensor sums = alibi_sums(at::tensor({0.5F, 2.0F}), 3);
  EXPECT_BITWISE_EQUAL(
      sums, at::tensor({-0.0, -0.5, -1.0, -0.0, -2.0, -4.0}, at::kDouble).reshape({1, 2, 3}));
  EXPECT_THROW(alibi_sums(at::zeros({2, 2}), 3), Error);
  EXPECT_THROW(alibi_sums(at::zeros({2}), -1), Error);
}

}  // namespace
}  // namespace reynard::attention
