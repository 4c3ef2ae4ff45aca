#include "reynard/training/optimizer.h"

#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <map>

namespace reynard::training {

Optimizer::Optimizer(const OptimizerConfig& config, models::Decoder& model)
    : config_(config), model_(&model), groups_(2) {
  groups_[0].weight_decay = config.weight_decay;
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    if (parameter.frozen) return;
    Group& group = groups_[parameter.decay ? 0 : 1];
    const at::TensorOptions f32 = parameter.value.options().dtype(at::kFloat).requires_grad(false);
    group.names.push_back(name);
    group.values.push_back(parameter.value);
    group.exp_avg.push_back(at::zeros(parameter.value.sizes(), f32));
    group.exp_avg_sq.push_back(at::zeros(parameter.value.sizes(), f32));
    group.steps.push_back(at::zeros({}, f32));
  });
}

double Optimizer::grad_norm() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const Group& group : groups_) {
    for (const at::Tensor& value : group.values) {
      if (value.grad().defined()) gradients.push_back(value.grad());
    }
  }
  if (gradients.empty()) return 0;
  // Copied once: on a GPU every number that is read waits for the work before it.
  const at::Tensor norms = at::stack(at::_foreach_norm(gradients)).to(at::kCPU, at::kDouble);
  double square = 0;
  for (int64_t i = 0; i < norms.size(0); ++i) {
    square += std::pow(norms.const_data_ptr<double>()[i], 2);
  }
  return std::sqrt(square);
}

void Optimizer::step(double learning_rate, double grad_norm) {
  const at::NoGradGuard no_grad;
  const bool clip = config_.clip_norm > 0 && grad_norm > config_.clip_norm;
  for (Group& group : groups_) {
    std::vector<at::Tensor> values, gradients, exp_avg, exp_avg_sq, steps;
    for (size_t i = 0; i < group.values.size(); ++i) {
      if (!group.values[i].grad().defined()) continue;  // not used by this model's forward
      values.push_back(group.values[i]);
      gradients.push_back(group.values[i].grad());
      exp_avg.push_back(group.exp_avg[i]);
      exp_avg_sq.push_back(group.exp_avg_sq[i]);
      steps.push_back(group.steps[i]);
    }
    if (values.empty()) continue;
    if (clip) at::_foreach_mul_(gradients, config_.clip_norm / grad_norm);
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(values,
                      gradients,
                      exp_avg,
                      exp_avg_sq,
                      /*max_exp_avg_sqs=*/{},
                      steps,
                      learning_rate,
                      config_.beta1,
                      config_.beta2,
                      group.weight_decay,
                      config_.epsilon,
                      /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  clear_gradients();
  model_->refresh_compute();
}

void Optimizer::clear_gradients() {
  for (Group& group : groups_) {
    for (at::Tensor& value : group.values) value.mutable_grad().reset();
  }
}

std::vector<checkpoint::NamedTensor> Optimizer::state() const {
  std::vector<checkpoint::NamedTensor> state;
  for (const Group& group : groups_) {
    for (size_t i = 0; i < group.names.size(); ++i) {
      state.push_back({"exp_avg." + group.names[i], group.exp_avg[i]});
      state.push_back({"exp_avg_sq." + group.names[i], group.exp_avg_sq[i]});
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
    throw Error(fmt::format(
        "optimizer state has {} tensors; expected {} for this model", by_name.size(), own.size()));
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
