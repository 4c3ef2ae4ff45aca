#include "reynard/training/optimizer.h"

#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/training/tiny.h"

#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <set>

namespace reynard::training {

namespace {

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
  optimizer.step(0.01, optimizer.grad_norm());
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
  const double norm = clipped.grad_norm();
  double square = 0;
  model.parameters([&](const std::string&, models::Parameter& parameter) {
    square += 4.0 * static_cast<double>(parameter.value.numel());
  });
  EXPECT_NEAR(norm, std::sqrt(square), 1e-4 * norm);
  clipped.step(1e-3, norm);
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
  optimizer.step(0.1, optimizer.grad_norm());
  int64_t copies = 0;
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    if (!parameter.compute.defined()) return;
    ++copies;
    EXPECT_BITWISE_EQUAL(parameter.compute, parameter.value.detach().to(at::kBFloat16)) << name;
  });
  EXPECT_GT(copies, 0);
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
