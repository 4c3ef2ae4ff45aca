#include "reynard/training/optimizer.h"

#include "reynard/ops/adamw.h"
#include "reynard/ops/global_norm.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <ATen/ops/zeros.h>

#include <map>

namespace reynard::training {

Optimizer::Optimizer(const OptimizerConfig& config, models::Decoder& model)
    : config_(config), groups_(2) {
  groups_[0].weight_decay = config.weight_decay;
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    if (parameter.frozen) return;
    Group& group = groups_[parameter.decay ? 0 : 1];
    const at::TensorOptions f32 = parameter.value.options().dtype(at::kFloat).requires_grad(false);
    group.names.push_back(name);
    group.parameters.push_back(&parameter);
    if (config.rule == OptimizerRule::kAdafactor) {
      group.factored.push_back(adafactor_moments(parameter.value.detach()));
    } else {
      group.exp_avg.push_back(at::zeros(parameter.value.sizes(), f32));
      group.exp_avg_sq.push_back(at::zeros(parameter.value.sizes(), f32));
    }
    group.steps.push_back(at::zeros({}, at::kFloat));
    group.moved.push_back(false);
  });
}

at::Tensor Optimizer::grad_norm() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const Group& group : groups_) {
    for (const models::Parameter* parameter : group.parameters) {
      if (parameter->value.grad().defined()) gradients.push_back(parameter->value.grad());
    }
  }
  return ops::global_norm(gradients);
}

void Optimizer::step(double learning_rate, const at::Tensor& grad_norm, const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  // 0 * x is 0, or NaN where x is not finite.
  at::Tensor scale = 1 + 0 * (grad_norm + loss.to(grad_norm.device()));
  if (config_.clip_norm > 0) scale = scale * (config_.clip_norm / grad_norm).clamp_max(1);
  scale = scale.to(at::kFloat);
  std::vector<ops::AdamWStep> steps;
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      models::Parameter& parameter = *group.parameters[i];
      const at::Tensor& gradient = parameter.value.grad();
      group.moved[i] = gradient.defined();  // else not used by this model's forward
      if (!group.moved[i]) continue;
      const auto taken = static_cast<int64_t>(group.steps[i].add_(1).item<float>());
      if (config_.rule == OptimizerRule::kAdafactor) {
        adafactor(parameter.value.detach(),
                  group.factored[i],
                  gradient,
                  scale.to(gradient.device()),
                  {.learning_rate = learning_rate,
                   .beta1 = config_.beta1,
                   .weight_decay = group.weight_decay,
                   .step = taken});
        if (parameter.compute.defined()) parameter.compute.copy_(parameter.value);
        continue;
      }
      steps.push_back({.value = parameter.value.detach(),
                       .compute = parameter.compute,
                       .exp_avg = group.exp_avg[i],
                       .exp_avg_sq = group.exp_avg_sq[i],
                       .gradient = gradient,
                       .learning_rate = learning_rate,
                       .beta1 = config_.beta1,
                       .beta2 = config_.beta2,
                       .epsilon = config_.epsilon,
                       .weight_decay = group.weight_decay,
                       .step = taken});
    }
  }
  ops::adamw(steps, scale);
  clear_gradients();
}

void Optimizer::take_back_step() {
  for (Group& group : groups_) {
    for (size_t i = 0; i < group.steps.size(); ++i) {
      if (group.moved[i]) group.steps[i].sub_(1);
    }
  }
}

void Optimizer::clear_gradients() {
  for (Group& group : groups_) {
    for (models::Parameter* parameter : group.parameters) parameter->value.mutable_grad().reset();
  }
}

std::vector<checkpoint::NamedTensor> Optimizer::state() const {
  std::vector<checkpoint::NamedTensor> state;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.names.size(); ++i) {
      if (config_.rule == OptimizerRule::kAdafactor) {
        for (const auto& [moment, tensor] : group.factored[i].named()) {
          state.push_back({moment + "." + group.names[i], tensor});
        }
      } else {
        state.push_back({"exp_avg." + group.names[i], group.exp_avg[i]});
        state.push_back({"exp_avg_sq." + group.names[i], group.exp_avg_sq[i]});
      }
      state.push_back({"step." + group.names[i], group.steps[i]});
    }
  }
  return state;
}

void Optimizer::restore(std::span<const checkpoint::NamedTensor> saved) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : saved) by_name.emplace(name, tensor);
  const auto own = state();
  if (by_name.size() != own.size()) {
    throw Error(fmt::format("optimizer state has {}; expected {} for this model",
                            counted(by_name.size(), "tensor"),
                            own.size()));
  }
  for (const auto& [name, tensor] : own) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      throw Error(fmt::format("optimizer state has no tensor `{}`", name));
    }
    if (found->second.sizes() != tensor.sizes() ||
        found->second.scalar_type() != tensor.scalar_type()) {
      throw Error(
          fmt::format("optimizer state `{}` has another shape or dtype than the model", name));
    }
  }
  for (auto& [name, tensor] : own) tensor.copy_(by_name.at(name));
}

}  // namespace reynard::training
