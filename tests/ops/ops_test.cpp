// Each operator on numbers small enough to check by hand, its gradients against central
// differences, and what it rejects.

#include "reynard/ops/cross_entropy.h"
#include "reynard/ops/few_row_products.h"
#include "reynard/ops/gated_act.h"
#include "reynard/ops/int8_linear.h"
#include "reynard/ops/linear.h"
#include "reynard/ops/log_gate.h"
#include "reynard/ops/rms_norm.h"
#include "reynard/ops/rotary.h"
#include "reynard/ops/token_shift.h"
#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"
#include "tests/support/errors.h"
#include "tests/support/gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::ops {
namespace {

using test::random_normal;

at::Tensor tensor(std::initializer_list<double> values, at::IntArrayRef shape) {
  return at::tensor(std::vector<double>(values), at::kFloat).view(shape);
}

at::Tensor indices(std::vector<int64_t> values) {
  return at::tensor(values, at::kLong);
}

TEST(LogGate, IsTheLogarithmOfASigmoid) {
  const at::Tensor bias = random_normal({12}, 2).to(at::kFloat);
  for (const int64_t rows : {int64_t{1}, kFewRows, kFewRows + 1}) {
    const at::Tensor logits = 20 * random_normal({rows, 12}, 3).to(at::kFloat);
    const at::Tensor exact = at::log_sigmoid(logits.to(at::kDouble) + bias.to(at::kDouble));
    const at::Tensor gates =
        log_gate(test::on_test_device(logits), test::on_test_device(bias)).cpu();
    EXPECT_TENSORS_NEAR(gates, exact, 1e-12, 5e-6);
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const at::Tensor extremes = tensor({-kInfinity, -1e30F, 1e30F, kInfinity, NAN}, {1, 5});
  const at::Tensor gates =
      log_gate(test::on_test_device(extremes), test::on_test_device(at::zeros({5}))).cpu();
  EXPECT_TRUE(gates.narrow(1, 0, 4).equal(tensor({-kInfinity, -1e30F, 0, 0}, {1, 4})));
  EXPECT_TRUE(std::isnan(gates[0][4].item<float>()));
}

TEST(LogGate, Gradients) {
  const auto gate = [](const std::vector<at::Tensor>& in) { return log_gate(in[0], in[1]); };
  EXPECT_GRADIENTS_RIGHT(gate, {random_normal({3, 4}, 1), random_normal({4}, 2)});
}

TEST(RmsNorm, DividesByTheRootOfTheMeanSquare) {
  const at::Tensor x = tensor({3, 4}, {1, 2});  // mean square 12.5
  const at::Tensor weight = tensor({1, 10}, {2});
  const double root = std::sqrt(12.5);
  EXPECT_TENSORS_NEAR(rms_norm(x, weight, 0), tensor({3 / root, 40 / root}, {1, 2}), 1e-6, 0);
}

TEST(RmsNorm, GroupsAreNormalisedByThemselves) {
  const at::Tensor x = random_normal({5, 12}, 1);
  const at::Tensor weight = random_normal({12}, 2);
  const at::Tensor whole = rms_norm(x, weight, 1e-5, 3);
  for (int64_t group = 0; group < 3; ++group) {
    const at::Tensor alone =
        rms_norm(x.narrow(1, 4 * group, 4), weight.narrow(0, 4 * group, 4), 1e-5);
    EXPECT_TENSORS_NEAR(whole.narrow(1, 4 * group, 4), alone, 1e-12, 0);
  }
  const at::Tensor shared = weight.narrow(0, 0, 4);
  EXPECT_TENSORS_NEAR(
      rms_norm(x, shared, 1e-5, 3), rms_norm(x, shared.repeat({3}), 1e-5, 3), 1e-12, 0);
}

TEST(RmsNorm, Gradients) {
  const auto norm = [](const std::vector<at::Tensor>& in) {
    return rms_norm(in[0], in[1], 1e-2, 2);
  };
  EXPECT_GRADIENTS_RIGHT(norm, {random_normal({3, 8}, 1), random_normal({8}, 2)});
  EXPECT_GRADIENTS_RIGHT(norm, {random_normal({3, 8}, 1), random_normal({4}, 2)});
  const auto gated = [](const std::vector<at::Tensor>& in) {
    return gated_rms_norm(in[0], in[1], in[2], 1e-2, 2);
  };
  EXPECT_GRADIENTS_RIGHT(
      gated, {random_normal({3, 8}, 1), random_normal({3, 8}, 2), random_normal({8}, 3)});
  const auto add = [](const std::vector<at::Tensor>& in) {
    const NormedSum sum = add_rms_norm(in[0], in[1], in[2], 1e-2);
    return sum.normed + 2 * sum.residual;
  };
  EXPECT_GRADIENTS_RIGHT(
      add, {random_normal({3, 8}, 1), random_normal({3, 8}, 2), random_normal({8}, 3)});
}

TEST(RmsNorm, Rejects) {
  const at::Tensor x = at::ones({2, 6});
  EXPECT_THROW(rms_norm(x, at::ones({5}), 1e-6), Error);
  EXPECT_THROW(rms_norm(x, at::ones({6}), 1e-6, 4), Error);
  EXPECT_THROW(rms_norm(x, at::ones({6}), 1e-6, 0), Error);
  EXPECT_THROW(rms_norm(x.to(at::kLong), at::ones({6}), 1e-6), Error);
  EXPECT_THROW(add_rms_norm(x, at::ones({2, 5}), at::ones({6}), 1e-6), Error);
  EXPECT_THROW(gated_rms_norm(x, at::ones({1, 6}), at::ones({6}), 1e-6, 2), Error);
}

TEST(TokenShift, MixesWithThePreviousTokenOfTheSequence) {
  const at::Tensor x = tensor({1, 2, 3, 4, 5}, {5, 1, 1});
  const at::Tensor half = at::zeros({5, 1});  // sigmoid(0) = 1/2
  const at::Tensor starts = indices({0, 3});
  EXPECT_TENSORS_NEAR(
      token_shift(x, half, starts), tensor({0.5, 1.5, 2.5, 2, 4.5}, {5, 1, 1}), 1e-6, 0);
  const at::Tensor previous = tensor({10, 20}, {2, 1, 1});
  EXPECT_TENSORS_NEAR(
      token_shift(x, half, starts, previous), tensor({5.5, 1.5, 2.5, 12, 4.5}, {5, 1, 1}), 1e-6, 0);
}

TEST(TokenShift, RowsOfAllHeadsAreTheSame) {
  const at::Tensor starts = indices({0, 3});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor x = random_normal({5, 2, 3}, 1).to(dtype);
    const at::Tensor logit = random_normal({5, 2}, 2).to(dtype);
    const at::Tensor previous = random_normal({2, 2, 3}, 3).to(dtype);
    const at::Tensor rows = token_shift(x.flatten(1), logit, starts, previous.flatten(1));
    EXPECT_TRUE(rows.equal(token_shift(x, logit, starts, previous).flatten(1))) << dtype;
    EXPECT_THROW(token_shift(x.flatten(1), logit, starts, previous), Error);
  }
  EXPECT_THROW(token_shift(at::ones({4, 5}), at::ones({4, 2}), indices({0})), Error);
  EXPECT_THROW(token_shift(at::ones({4, 5}), at::ones({4, 0}), indices({0})), Error);
}

TEST(TokenShift, Gradients) {
  const auto shift = [](const std::vector<at::Tensor>& in) {
    return token_shift(in[0], in[1], indices({0, 2, 3}), in.size() > 2 ? in[2] : at::Tensor());
  };
  EXPECT_GRADIENTS_RIGHT(shift, {random_normal({5, 2, 3}, 1), random_normal({5, 2}, 2)});
  const at::Tensor previous = random_normal({3, 2, 3}, 3);
  const auto with_previous = [&](const std::vector<at::Tensor>& in) {
    return token_shift(in[0], in[1], indices({0, 2, 3}), previous);
  };
  EXPECT_GRADIENTS_RIGHT(with_previous, {random_normal({5, 2, 3}, 1), random_normal({5, 2}, 2)});
}

TEST(TokenShift, Rejects) {
  const at::Tensor x = at::ones({4, 2, 3});
  const at::Tensor logit = at::ones({4, 2});
  EXPECT_THROW(token_shift(x.flatten(), logit, indices({0})), Error);
  EXPECT_THROW(token_shift(x, at::ones({4, 3}), indices({0})), Error);
  EXPECT_THROW(token_shift(x, logit, indices({0}), at::ones({2, 2, 3})), Error);
  EXPECT_THROW(token_shift(x, logit, indices({1})), Error);
  EXPECT_THROW(token_shift(x, logit, indices({0, 2, 2})), Error);
  EXPECT_THROW(token_shift(x, logit, indices({0, 4})), Error);
  EXPECT_THROW(token_shift(x, logit, indices({})), Error);
}

// Whose gradients would count as constants.
TEST(Rows, RejectSecondDerivatives) {
  const at::Tensor starts = indices({0}), positions = indices({0, 1, 2}), targets = positions;
  const at::Tensor weight = random_normal({6}, 2, at::kFloat);
  const std::pair<std::string, test::TensorFunction> functions[] = {
      {"rms_norm", [&](const auto& in) { return rms_norm(in[0], weight, 1e-6); }},
      {"add_rms_norm",
       [&](const auto& in) { return add_rms_norm(in[0], in[0], weight, 1e-6).normed; }},
      {"rotary",
       [&](const auto& in) {
         return rotary(in[0].view({3, 1, 6}), positions, 100);
       }},
      {"token_shift", [&](const auto& in) { return token_shift(in[0], in[0], starts); }},
      {"gated_act", [](const auto& in) { return gated_act(in[0], Activation::kSilu); }},
      {"gate_mul", [](const auto& in) { return gate_mul(in[0], in[0], Activation::kSilu); }},
      {"linear", [](const auto& in) { return ops::linear(in[0], {in[0]}); }},
      {"gated_linear",
       [](const auto& in) {
         return gated_linear(in[0], Activation::kSilu, {in[0].slice(1, 0, 3)});
       }},
      {"cross_entropy", [&](const auto& in) { return cross_entropy(in[0], in[0], {}, targets); }},
  };
  for (const auto& [name, function] : functions) {
    const std::vector<at::Tensor> x = {random_normal({3, 6}, 1, at::kFloat).requires_grad_()};
    const at::Tensor sum = function(x).square().sum();
    EXPECT_SAYS(test::error_of([&] {
                  torch::autograd::grad({sum}, x, {}, /*retain_graph=*/true, /*create_graph=*/true);
                }),
                name + ": create_graph = true; expected false");
    EXPECT_NO_THROW(torch::autograd::grad({sum}, x));
  }
}

// As if they lay on another GPU: kernels would read the pointers as their own.
TEST(Rows, RejectTensorsElsewhere) {
  const auto elsewhere = [](const at::Tensor& t) { return t.to(at::kMeta); };
  const auto expect_named = [](const std::string& text, const std::function<void()>& call) {
    EXPECT_SAYS(test::error_of(call), text + " = meta; expected that of x: cpu");
  };
  const at::Tensor x = at::ones({4, 2, 6}), logit = at::ones({4, 2}), starts = indices({0});
  expect_named("token_shift: device of shift_logit",
               [&] { token_shift(x, elsewhere(logit), starts); });
  expect_named("token_shift: device of starts", [&] { token_shift(x, logit, elsewhere(starts)); });
  expect_named("token_shift: device of previous", [&] {
    token_shift(x, logit, starts, elsewhere(at::ones({1, 2, 6})));
  });
  expect_named("rotary: device of positions", [&] {
    rotary(x, elsewhere(indices({0, 1, 2, 3})), 100);
  });
  const at::Tensor weight = at::ones({6});
  expect_named("rms_norm: device of weight", [&] { rms_norm(x, elsewhere(weight), 1e-6); });
  expect_named("add_rms_norm: device of weight",
               [&] { add_rms_norm(x, x, elsewhere(weight), 1e-6); });
  expect_named("add_rms_norm: device of residual",
               [&] { add_rms_norm(x, elsewhere(x), weight, 1e-6); });
  expect_named("gated_rms_norm: device of gate",
               [&] { gated_rms_norm(x, elsewhere(x), weight, 1e-6, 1); });
  expect_named("gate_mul: device of gate", [&] { gate_mul(x, elsewhere(x), Activation::kSilu); });
}

TEST(Rotary, TurnsPairsByThePosition) {
  const at::Tensor x = tensor({1, 0, 0, 1}, {1, 1, 4});  // pairs (0, 2) and (1, 3)
  const at::Tensor turned = rotary(x, indices({3}), 100);
  EXPECT_TENSORS_NEAR(turned,
                      tensor({std::cos(3), -std::sin(0.3), std::sin(3), std::cos(0.3)}, {1, 1, 4}),
                      1e-6,
                      0);
  EXPECT_BITWISE_EQUAL(rotary(x, indices({0}), 100), x);
}

TEST(Rotary, Scaled) {
  using Type = RotaryScalingType;
  const at::Tensor x = random_normal({1, 2, 6}, 1);
  const RotaryScaling linear{.type = Type::kLinear, .factor = 3};
  EXPECT_TENSORS_NEAR(rotary(x, indices({12}), 100, linear), rotary(x, indices({4}), 100), 1e-6, 0);
  // Within the original length as if not scaled; beyond it at twice the length with
  // base * (2 * 2 - 1)^(6 / 4).
  const RotaryScaling dynamic{.type = Type::kDynamic, .factor = 2, .original_length = 8};
  EXPECT_TENSORS_NEAR(rotary(x, indices({7}), 100, dynamic), rotary(x, indices({7}), 100), 1e-6, 0);
  EXPECT_TENSORS_NEAR(rotary(x, indices({15}), 100, dynamic),
                      rotary(x, indices({15}), 100 * std::pow(3, 1.5)),
                      1e-6,
                      0);
  // The first pair turns 500 / 2 pi times within the original length and is kept, the last 3.7
  // times and is slowed; cosines and sines grow.
  const RotaryScaling yarn{.type = Type::kYarn, .factor = 4, .original_length = 500};
  const at::Tensor angles = rotary_angles(indices({3}), 3, 100, yarn);
  EXPECT_NEAR(angles[0][0].item<double>(), 3, 1e-6);
  EXPECT_LT(angles[0][2].item<double>(), 3 * std::pow(100, -2.0 / 3));
  EXPECT_NEAR(rotary(x, indices({9}), 100, yarn).norm().item<double>(),
              x.norm().item<double>() * (0.1 * std::log(4) + 1),
              1e-4);
  const auto turn = [&](const std::vector<at::Tensor>& in) {
    return rotary(in[0], indices({0, 1, 7}), 1000, yarn);
  };
  EXPECT_GRADIENTS_RIGHT(turn, {random_normal({3, 2, 6}, 1)});
  EXPECT_THROW(rotary(at::ones({1, 1, 2}), indices({0}), 100, dynamic), Error);
}

// Where the ramp of yarn leaves the pairs: slow ones that turn once within the original length only
// beyond the last pair (at 2 half - 1 it is cut), and none that turn as often at all.
TEST(Rotary, YarnRampsEndBesideThePairs) {
  const at::Tensor one = indices({1});
  const auto kept = [&](double base, int64_t length, double beta_fast) {
    const RotaryScaling yarn{.type = RotaryScalingType::kYarn,
                             .factor = 4,
                             .original_length = length,
                             .beta_fast = beta_fast};
    const at::Tensor plain = rotary_angles(one, 4, base, {});
    return ((rotary_angles(one, 4, base, yarn) / plain - 0.25) / 0.75).to(at::kDouble).flatten();
  };
  // 4 ln(500 / (10 2 pi)) / ln 10 = 3.6, so from pair 3, and 7.6 to pair 7.
  EXPECT_TENSORS_NEAR(kept(10, 500, 10), tensor({1, 1, 1, 1}, {4}), 1e-5, 0);
  // 4 ln(500 / (79.58 2 pi)) / ln 10 = 0: shares of sevenths.
  EXPECT_TENSORS_NEAR(
      kept(10, 500, 79.6), tensor({1, 6.0 / 7, 5.0 / 7, 4.0 / 7}, {4}).to(at::kDouble), 1e-5, 0);
  EXPECT_TENSORS_NEAR(kept(10000, 5, 32), tensor({1, 0, 0, 0}, {4}), 1e-5, 0);
}

// Tables of cosines and sines are kept: those of each base and scaling for itself.
TEST(Rotary, TurnsInF32AreThoseInF64) {
  using Type = RotaryScalingType;
  const at::Tensor x = random_normal({3, 2, 8}, 1), positions = indices({0, 5, 90});
  for (const double base : {100.0, 1000.0}) {
    for (const RotaryScaling& scaling :
         {RotaryScaling{},
          RotaryScaling{.type = Type::kLinear, .factor = 3},
          RotaryScaling{.type = Type::kLinear, .factor = 4},
          RotaryScaling{.type = Type::kYarn, .factor = 4, .original_length = 50}}) {
      const at::Tensor narrow = rotary(
          test::on_test_device(x.to(at::kFloat)), test::on_test_device(positions), base, scaling);
      EXPECT_TENSORS_NEAR(narrow.cpu(), rotary(x, positions, base, scaling), 1e-4, 0);
    }
  }
}

TEST(Rotary, Gradients) {
  const auto turn = [](const std::vector<at::Tensor>& in) {
    return rotary(in[0], indices({0, 1, 7}), 1000);
  };
  EXPECT_GRADIENTS_RIGHT(turn, {random_normal({3, 2, 6}, 1)});
}

TEST(Rotary, Rejects) {
  EXPECT_THROW(rotary(at::ones({2, 1, 3}), indices({0, 1}), 100), Error);
  EXPECT_THROW(rotary(at::ones({2, 1, 4}), indices({0}), 100), Error);
  EXPECT_THROW(rotary(at::ones({2, 1, 4}), indices({0, 1}), 0), Error);
  EXPECT_THROW(rotary(at::ones({2, 1, 4}), indices({0, -1}), 100), Error);
}

TEST(GatedAct, MultipliesTheActivatedGate) {
  const at::Tensor gate_up = tensor({0, 1, 10, 20}, {1, 4});  // gate 0 1, up 10 20
  const double open = 1 / (1 + std::exp(-1.0));
  EXPECT_TENSORS_NEAR(
      gated_act(gate_up, Activation::kSilu), tensor({0, 20 * open}, {1, 2}), 1e-5, 0);
  EXPECT_TENSORS_NEAR(
      gated_act(gate_up, Activation::kSigmoid), tensor({5, 20 * open}, {1, 2}), 1e-5, 0);
}

TEST(GatedAct, Gradients) {
  for (const Activation act : {Activation::kSilu, Activation::kSigmoid}) {
    const auto gated = [&](const std::vector<at::Tensor>& in) { return gated_act(in[0], act); };
    EXPECT_GRADIENTS_RIGHT(gated, {random_normal({3, 8}, 1)});
    const auto mul = [&](const std::vector<at::Tensor>& in) { return gate_mul(in[0], in[1], act); };
    EXPECT_GRADIENTS_RIGHT(mul, {random_normal({3, 4}, 1), random_normal({3, 4}, 2)});
  }
}

TEST(GatedAct, Rejects) {
  EXPECT_THROW(gated_act(at::ones({2, 3}), Activation::kSilu), Error);
  EXPECT_THROW(gated_act(at::ones({4}), Activation::kSilu), Error);
  EXPECT_THROW(gate_mul(at::ones({4}), at::ones({3}), Activation::kSilu), Error);
}

TEST(Linear, GradientOfTheComputeCopyReachesTheMaster) {
  const at::Tensor x = random_normal({5, 8}, 1, at::kFloat).requires_grad_(true);
  const at::Tensor weight = random_normal({3, 8}, 2, at::kFloat).requires_grad_(true);
  const at::Tensor compute = weight.detach().to(at::kBFloat16);
  const at::Tensor y = ops::linear(x, {weight, compute});
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
  EXPECT_TENSORS_NEAR(weight.grad(), x.detach().sum(0).expand({3, 8}), 0.05, 0.01);
  EXPECT_TENSORS_NEAR(x.grad(), weight.detach().sum(0).expand({5, 8}), 0.05, 0.01);
}

TEST(Linear, Gradients) {
  const auto product = [](const std::vector<at::Tensor>& in) {
    return ops::linear(in[0], {in[1]}, in[2]);
  };
  EXPECT_GRADIENTS_RIGHT(
      product, {random_normal({4, 5}, 1), random_normal({3, 5}, 2), random_normal({3}, 3)});
}

TEST(Linear, Rejects) {
  const at::Tensor weight = at::ones({3, 5});
  EXPECT_THROW(ops::linear(at::ones({2, 4}), {weight}), Error);
  EXPECT_THROW(ops::linear(at::ones({2, 5}), {weight, at::ones({3, 4})}), Error);
  EXPECT_THROW(ops::linear(at::ones({2, 5}), {weight}, at::ones({2})), Error);
  // Half of an odd width would be that of the weight.
  EXPECT_THROW(ops::gated_linear(at::ones({2, 11}), Activation::kSilu, {weight}), Error);
}

// Few rows and many, each kind of weight.
TEST(Linear, LogitsAreF32) {
  const at::Tensor head = random_normal({70, 96}, 1, at::kFloat);
  const Int8Weight int8 = quantize_rows(head);
  const at::Tensor narrow = head.to(at::kBFloat16);
  for (const int64_t rows : {0, 1, 32, 33, 300}) {
    const at::Tensor x = random_normal({rows, 96}, 2).to(at::kBFloat16);
    const auto expect_near = [&](const ops::Weight& weight, const at::Tensor& values) {
      const at::Tensor y = ops::logits(x, weight);
      ASSERT_EQ(y.scalar_type(), at::kFloat);
      const at::Tensor exact = x.to(at::kDouble).matmul(values.to(at::kDouble).t());
      EXPECT_TENSORS_NEAR(y.to(at::kDouble), exact, 1e-4, 1e-6) << rows;
    };
    expect_near({head}, head);
    expect_near({head, narrow}, narrow);
    expect_near({.value = int8.values, .scales = int8.scales},
                int8.values.to(at::kDouble) * int8.scales.unsqueeze(1));
  }
  EXPECT_THROW(ops::logits(at::ones({2, 95}), {head}), Error);
}

TEST(CrossEntropy, UniformLogitsCostTheLogOfTheVocabulary) {
  const at::Tensor hidden = at::zeros({6, 4});
  const at::Tensor head = random_normal({10, 4}, 1, at::kFloat);
  const at::Tensor loss = cross_entropy(hidden, head, {}, at::arange(6, at::kLong));
  EXPECT_NEAR(loss.item<double>(), 6 * std::log(10.0), 1e-5);
  const TokenScores scores = score_tokens(hidden, head, {}, at::arange(6, at::kLong));
  EXPECT_TENSORS_NEAR(scores.logprob, at::full({6}, -std::log(10.0), at::kFloat), 1e-6, 0);
}

TEST(CrossEntropy, ChunksDoNotMatterAndMaskedTokensDoNotCount) {
  const at::Tensor hidden = random_normal({11, 4}, 1);
  const at::Tensor head = random_normal({7, 4}, 2);
  const at::Tensor targets = at::arange(11, at::kLong).remainder(7);
  const at::Tensor mask = at::ones({11}, at::kFloat);
  mask[3].fill_(0);
  const at::Tensor whole = cross_entropy(hidden, head, {}, targets, mask);
  EXPECT_TENSORS_NEAR(cross_entropy(hidden, head, {}, targets, mask, 3), whole, 1e-12, 0);
  const TokenScores scores = score_tokens(hidden, head, {}, targets, 4);
  EXPECT_TENSORS_NEAR(-(scores.logprob * mask).sum(), whole, 1e-12, 0);
  EXPECT_BITWISE_EQUAL(scores.greedy, hidden.matmul(head.t()).argmax(1));
}

TEST(CrossEntropy, Gradients) {
  const at::Tensor mask = at::ones({5}, at::kFloat);
  mask[1].fill_(0);
  const auto loss = [&](const std::vector<at::Tensor>& in) {
    return cross_entropy(in[0], in[1], {}, indices({0, 1, 5, 2, 2}), mask, 2);
  };
  EXPECT_GRADIENTS_RIGHT(loss, {random_normal({5, 4}, 1), random_normal({6, 4}, 2)});
}

// They are as large as the head and are not copied.
TEST(CrossEntropy, GivesItsGradientsAwayOnce) {
  const at::Tensor hidden = random_normal({3, 4}, 1).requires_grad_();
  const at::Tensor head = random_normal({6, 4}, 2).requires_grad_();
  const at::Tensor loss = cross_entropy(hidden, head, {}, indices({0, 1, 5}));
  (2 * loss).backward({}, /*retain_graph=*/true);
  const at::Tensor twice = head.grad().clone();
  EXPECT_THROW(loss.backward(), Error);
  head.mutable_grad().reset();
  cross_entropy(hidden, head, {}, indices({0, 1, 5})).backward();
  EXPECT_TENSORS_NEAR(twice, 2 * head.grad(), 1e-12, 0);
}

// Each of the head's three products is one of aten::mm for f64.
int num_products(const std::function<void()>& action) {
  static thread_local int count;
  count = 0;
  const auto handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                                   if (std::string_view(function.name()) == "aten::mm") ++count;
                                   return std::unique_ptr<at::ObserverContext>();
                                 }).scopes({at::RecordScope::FUNCTION}));
  action();
  at::removeCallback(handle);
  return count;
}

TEST(CrossEntropy, FormsNoGradientsThatNobodyWants) {
  const at::Tensor hidden = random_normal({3, 4}, 1).requires_grad_();
  const at::Tensor head = random_normal({6, 4}, 2).requires_grad_();
  const auto loss = [&] { cross_entropy(hidden, head, {}, indices({0, 1, 5})); };
  EXPECT_EQ(num_products(loss), 3);
  const at::NoGradGuard no_grad;
  EXPECT_EQ(num_products(loss), 1);
}

TEST(CrossEntropy, Rejects) {
  const at::Tensor hidden = at::ones({2, 4});
  const at::Tensor head = at::ones({6, 4});
  EXPECT_THROW(cross_entropy(hidden, head, {}, indices({0})), Error);
  EXPECT_THROW(cross_entropy(hidden, head, {}, indices({0, 6})), Error);
  EXPECT_THROW(cross_entropy(hidden, head, {}, indices({0, -1})), Error);
  EXPECT_THROW(cross_entropy(hidden, at::ones({6, 3}), {}, indices({0, 1})), Error);
  EXPECT_THROW(cross_entropy(hidden, head, at::ones({5, 4}), indices({0, 1})), Error);
  EXPECT_THROW(cross_entropy(hidden, head, {}, indices({0, 1}), at::ones({3})), Error);
  EXPECT_THROW(cross_entropy(hidden, head, {}, indices({0, 1}), {}, 0), Error);
  EXPECT_THROW(score_tokens(hidden, head, {}, indices({0, 6})), Error);
}

}  // namespace
}  // namespace reynard::ops
