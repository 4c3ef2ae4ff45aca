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

// Documents begin at the borders of the pieces that a kernel takes at once (1,024 positions, from
// the left or from the right), beside them and elsewhere; each batch row has others.
TEST(GateSums, RestartTheirGradientAnywhereInALongSequence) {
  constexpr int64_t kLength = 5003, kHeads = 3;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t Tq : {kLength, int64_t{3000}}) {
      const test::AttentionShape shape = {.B = 2, .Tq = Tq, .Tk = kLength, .H = kHeads, .D = 1};
      const at::Tensor gate = test::random_inputs(shape).log_gate.to(dtype).requires_grad_(true);
      const at::Tensor first_key =
          test::first_keys(shape,
                           {.documents = {1, 1023, 1024, 1025, 2048, 2955, 3071, 3979, 4096, 5002},
                            .padding = {0, 2500}});
      const at::Tensor dsums =
          test::random_inputs(shape, at::kDouble, /*seed=*/2).log_gate.transpose(1, 2);
      gate_sums(gate, first_key).backward(dsums);

      const at::Tensor on_host[] = {first_key.cpu(), dsums.cpu()};
      const auto first = on_host[0].accessor<int32_t, 2>();
      const auto given = on_host[1].accessor<double, 3>();
      at::Tensor exact = at::zeros({2, kLength, kHeads}, at::kDouble);
      auto sums = exact.accessor<double, 3>();
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t h = 0; h < kHeads; ++h) {
          double sum = 0;
          for (int64_t t = kLength - 1; t >= 0; --t) {
            const int64_t query = t - (kLength - Tq);
            const bool restarts = query >= 0 && first[b][query] >= t;
            sum = restarts ? 0 : sum + given[b][h][t];
            sums[b][t][h] = sum;
          }
        }
      }
      const double rounding = dtype == at::kFloat ? 0x1p-24 : 1e-14;
      EXPECT_TENSORS_NEAR(gate.grad(), exact, 1e-11, rounding);
      EXPECT_BITWISE_EQUAL(gate.grad().eq(0), exact.eq(0));
    }
  }
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
