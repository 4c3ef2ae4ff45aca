#include "reynard/training/optimizer.h"

#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/gradients.h"
#include "tests/training/tiny.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace reynard::training {

namespace {

const at::Tensor kLoss = at::ones({}, at::kDouble);

void set_gradients(models::Decoder& model, double value) {
  model.parameters([&](const std::string&, models::Parameter& parameter) {
    if (!parameter.frozen) {
      parameter.value.mutable_grad() = at::full_like(parameter.value.detach(), value);
    }
  });
}

}  // namespace

TEST(Optimizer, FirstStepMovesEveryWeightByTheRateAndDecaysMatricesOnly) {
  models::Decoder model(tiny_experiment().model);
  Optimizer optimizer({.weight_decay = 0.5, .clip_norm = 0}, model);
  std::map<std::string, at::Tensor> before;
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    before[name] = parameter.value.detach().clone();
  });
  set_gradients(model, 3);
  optimizer.step(0.01, optimizer.grad_norm(), kLoss);
  // AdamW's first step: m / sqrt(v) = sign(g); decay multiplies by 1 - rate * decay.
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    const bool matrix = parameter.value.dim() == 2;
    EXPECT_EQ(parameter.decay, matrix) << name;  // published groups: norms and biases are exempt
    const at::Tensor expected = before[name] * (matrix ? 1 - 0.01 * 0.5 : 1) - 0.01;
    EXPECT_TENSORS_NEAR(parameter.value.detach(), expected, 1e-6, 1e-6) << name;
    EXPECT_FALSE(parameter.value.grad().defined()) << name;
  });
}

TEST(Optimizer, ClipsTheGlobalNorm) {
  // Adam forgets the scale of a constant gradient, so compare first moments.
  models::Decoder model(tiny_experiment().model);
  Optimizer clipped({.clip_norm = 1}, model);
  set_gradients(model, 2);
  const at::Tensor grad_norm = clipped.grad_norm();
  const double norm = grad_norm.item<double>();
  double square = 0;
  model.parameters([&](const std::string&, models::Parameter& parameter) {
    square += 4.0 * static_cast<double>(parameter.value.numel());
  });
  EXPECT_NEAR(norm, std::sqrt(square), 1e-4 * norm);
  clipped.step(1e-3, grad_norm, kLoss);
  for (const auto& [name, tensor] : clipped.state()) {
    if (!name.starts_with("exp_avg.")) continue;
    EXPECT_TENSORS_NEAR(tensor, at::full_like(tensor, 0.1 * 2 / norm), 1e-8, 1e-4) << name;
  }
}

TEST(Optimizer, RefreshesTheComputeCopies) {
  models::Decoder model(tiny_experiment().model);
  model.set_compute_dtype(at::kBFloat16);
  Optimizer optimizer({}, model);
  set_gradients(model, 1);
  optimizer.step(0.1, optimizer.grad_norm(), kLoss);
  int64_t copies = 0;
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    if (!parameter.compute.defined()) return;
    ++copies;
    EXPECT_BITWISE_EQUAL(parameter.compute, parameter.value.detach().to(at::kBFloat16)) << name;
  });
  EXPECT_GT(copies, 0);
}

// Three steps of every parameter against the formulas of the paper in f64, bias correction
// included.
TEST(Optimizer, FollowsTheDefinition) {
  models::Decoder model(tiny_experiment().model);
  const OptimizerConfig config{.beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1, .clip_norm = 0};
  Optimizer optimizer(config, model);
  struct Moments {
    at::Tensor value, m, v;
  };
  std::map<std::string, Moments> expected;
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    const at::Tensor value = parameter.value.detach().to(at::kDouble).clone();
    expected[name] = {value, at::zeros_like(value), at::zeros_like(value)};
  });
  for (int t = 1; t <= 3; ++t) {
    model.parameters([&](const std::string& name, models::Parameter& parameter) {
      const at::Tensor g = test::random_normal(parameter.value.sizes(), t, at::kFloat);
      parameter.value.mutable_grad() = g;
      auto& [value, m, v] = expected[name];
      m = 0.8 * m + 0.2 * g.to(at::kDouble);
      v = 0.9 * v + 0.1 * g.to(at::kDouble) * g.to(at::kDouble);
      const at::Tensor root = (v / (1 - std::pow(0.9, t))).sqrt() + config.epsilon;
      value =
          value * (parameter.decay ? 1 - 0.01 * 0.1 : 1) - 0.01 / (1 - std::pow(0.8, t)) * m / root;
    });
    optimizer.step(0.01, optimizer.grad_norm(), kLoss);
  }
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    const at::Tensor& value = expected.at(name).value;
    EXPECT_TENSORS_NEAR(parameter.value.detach(), value.to(at::kFloat), 1e-6, 1e-5) << name;
  });
}

// The published formulas in f64, three steps: a matrix with rows and columns, and a vector.
TEST(Adafactor, FollowsTheDefinition) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{130, 140}, {7}}) {
    const at::Tensor value = at::randn(shape) * 0.1;
    at::Tensor expected = value.to(at::kDouble), momentum = at::zeros_like(expected);
    AdafactorMoments moments = adafactor_moments(value);
    EXPECT_EQ(moments.rows.defined(), shape.size() == 2);
    at::Tensor second = at::zeros_like(expected);
    at::Tensor rows = at::zeros({shape[0]}, at::kDouble), columns;
    if (shape.size() == 2) columns = at::zeros({shape[1]}, at::kDouble);
    for (int64_t t = 1; t <= 3; ++t) {
      const at::Tensor gradient = at::randn(shape);
      const double beta2 = 1 - std::pow(static_cast<double>(t), -0.8);
      const at::Tensor g = gradient.to(at::kDouble) * 0.5, square = g * g + 1e-30;
      if (shape.size() == 2) {
        rows = rows * beta2 + square.mean(1) * (1 - beta2);
        columns = columns * beta2 + square.mean(0) * (1 - beta2);
        second = rows.unsqueeze(1) * columns / rows.mean();
      } else {
        second = second * beta2 + square * (1 - beta2);
      }
      at::Tensor u = g / second.sqrt();
      u = u / (u * u).mean().sqrt().clamp_min(1);
      const double size = std::max((expected * expected).mean().sqrt().item<double>(), 1e-3);
      momentum = momentum * 0.9 + u * (0.1 * 0.02 * size);
      expected = expected * (1 - 0.02 * 0.3) - momentum;
      adafactor(value,
                moments,
                gradient,
                at::ones({}) * 0.5,
                {.learning_rate = 0.02, .weight_decay = 0.3, .step = t});
    }
    EXPECT_TENSORS_NEAR(value, expected.to(at::kFloat), 1e-6, 1e-5);
  }
}

TEST(Adafactor, SquaresOfMatricesFrom128On128AreFactored) {
  EXPECT_TRUE(adafactor_moments(at::zeros({128, 128})).rows.defined());
  EXPECT_FALSE(adafactor_moments(at::zeros({127, 300})).rows.defined());
  EXPECT_FALSE(adafactor_moments(at::zeros({300, 127})).rows.defined());
}

TEST(Adafactor, BitsDoNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{1031, 517}, {150, 41001}, {70001}}) {
    const at::Tensor value = at::randn(shape), gradient = at::randn(shape);
    const auto moved_by = [&](int num_threads) {
      at::set_num_threads(num_threads);
      at::Tensor moved = value.clone();
      AdafactorMoments moments = adafactor_moments(moved);
      for (int64_t t = 1; t <= 2; ++t) {
        adafactor(moved, moments, gradient, at::ones({}), {.learning_rate = 0.02, .step = t});
      }
      return moved;
    };
    const at::Tensor one = moved_by(1);
    for (const int count : {2, 3}) {
      EXPECT_TRUE(at::equal(one, moved_by(count))) << shape[0] << " rows, " << count << " threads";
    }
  }
  at::set_num_threads(threads);
}

TEST(Optimizer, AdafactorIsSavedAndChangesNothingWhereALossIsNotFinite) {
  models::Decoder model(tiny_experiment().model);
  Optimizer optimizer({.rule = OptimizerRule::kAdafactor}, model);
  set_gradients(model, 1);
  optimizer.step(0.01, optimizer.grad_norm(), kLoss);
  std::map<std::string, at::Tensor> before;
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    before[name] = parameter.value.detach().clone();
  });
  set_gradients(model, 1);
  optimizer.step(0.01, optimizer.grad_norm(), kLoss * std::numeric_limits<double>::quiet_NaN());
  optimizer.take_back_step();
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    EXPECT_BITWISE_EQUAL(parameter.value.detach(), before[name]) << name;
  });
  Optimizer other({.rule = OptimizerRule::kAdafactor}, model);
  other.restore(optimizer.state());
  const auto left = optimizer.state(), right = other.state();
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) EXPECT_BITWISE_EQUAL(left[i].tensor, right[i].tensor);
}

TEST(Optimizer, ChangesNothingWhereALossOrGradientIsNotFinite) {
  for (const bool in_loss : {true, false}) {
    models::Decoder model(tiny_experiment().model);
    Optimizer optimizer({}, model);
    std::map<std::string, at::Tensor> before;
    model.parameters([&](const std::string& name, models::Parameter& parameter) {
      before[name] = parameter.value.detach().clone();
    });
    set_gradients(model, in_loss ? 1 : std::numeric_limits<double>::infinity());
    const at::Tensor loss = in_loss ? kLoss / 0 : kLoss;
    optimizer.step(0.01, optimizer.grad_norm(), loss);
    optimizer.take_back_step();
    model.parameters([&](const std::string& name, models::Parameter& parameter) {
      EXPECT_BITWISE_EQUAL(parameter.value.detach(), before[name]) << name;
    });
    for (const auto& [name, tensor] : optimizer.state()) {
      EXPECT_EQ(tensor.abs().max().item<float>(), 0) << name;
    }
  }
}

// A parameter that the forward pass did not read has no gradient, and took no step to take back.
TEST(Optimizer, TakesBackTheStepsThatWereTaken) {
  models::Decoder model(tiny_experiment().model);
  Optimizer optimizer({}, model);
  set_gradients(model, 1);
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    if (name == "model.norm.weight") parameter.value.mutable_grad().reset();
  });
  optimizer.step(0.01, optimizer.grad_norm(), kLoss / 0);
  optimizer.take_back_step();
  for (const auto& [name, tensor] : optimizer.state()) {
    EXPECT_EQ(tensor.abs().max().item<float>(), 0) << name;
  }
}

TEST(Optimizer, LeavesFrozenParametersAlone) {
  models::DecoderConfig config = tiny_experiment().model;
  config.attention.forget_gate = models::ForgetGate::kFixed;
  config.attention.decay_time_min = 2;
  config.attention.decay_time_max = 64;
  models::Decoder model(config);
  const Optimizer optimizer({}, model);
  std::set<std::string> names;
  for (const auto& [name, tensor] : optimizer.state()) names.insert(name);
  EXPECT_TRUE(names.contains("exp_avg.model.norm.weight"));
  EXPECT_FALSE(names.contains("exp_avg.model.layers.0.attn.fgate_bias"));
}

TEST(Optimizer, RestoreRejectsWhatDoesNotFit) {
  models::Decoder model(tiny_experiment().model);
  Optimizer optimizer({}, model);
  auto state = optimizer.state();
  state.pop_back();
  EXPECT_THROW(optimizer.restore(state), Error);  // one is missing
  state = optimizer.state();
  state[0].name = "exp_avg.nothing";
  EXPECT_THROW(optimizer.restore(state), Error);  // another name
  state = optimizer.state();
  state[0].tensor = state[0].tensor.flatten();
  EXPECT_THROW(optimizer.restore(state), Error);  // another shape
  EXPECT_NO_THROW(optimizer.restore(optimizer.state()));
}

}  // namespace reynard::training
