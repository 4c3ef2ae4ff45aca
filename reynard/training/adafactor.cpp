#include "reynard/training/adafactor.h"

#include "reynard/ops/global_norm.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace reynard::training {

namespace {

constexpr int64_t kLeastFactored = 128;  // smaller sides are not worth the approximation
constexpr double kSmallestSquare = 1e-30, kSmallestScale = 1e-3;  // epsilon_1, epsilon_2

// The bits do not depend on the number of threads (global_norm).
at::Tensor root_mean_square(const at::Tensor& t) {
  return (ops::global_norm({&t, 1}) / std::sqrt(static_cast<double>(t.numel()))).to(at::kFloat);
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> AdafactorMoments::named() const {
  std::vector<std::pair<std::string, at::Tensor>> all = {{"exp_avg", exp_avg}};
  if (exp_avg_sq.defined()) all.emplace_back("exp_avg_sq", exp_avg_sq);
  if (rows.defined()) all.emplace_back("exp_avg_sq_rows", rows);
  if (columns.defined()) all.emplace_back("exp_avg_sq_columns", columns);
  return all;
}

AdafactorMoments adafactor_moments(const at::Tensor& value) {
  const at::TensorOptions f32 = value.options().dtype(at::kFloat).requires_grad(false);
  AdafactorMoments moments;
  moments.exp_avg = at::zeros(value.sizes(), f32);
  if (value.dim() == 2 && value.size(0) >= kLeastFactored && value.size(1) >= kLeastFactored) {
    moments.rows = at::zeros({value.size(0)}, f32);
    moments.columns = at::zeros({value.size(1)}, f32);
  } else {
    moments.exp_avg_sq = at::zeros(value.sizes(), f32);
  }
  return moments;
}

void adafactor(const at::Tensor& value,
               AdafactorMoments& moments,
               const at::Tensor& gradient,
               const at::Tensor& gradient_scale,
               const AdafactorStep& step) {
  const at::Tensor keep = at::isfinite(gradient_scale);
  const auto update = [&](const at::Tensor& old, const at::Tensor& fresh) {
    old.copy_(at::where(keep, fresh, old));
  };
  const at::Tensor g = gradient * gradient_scale;
  const at::Tensor square = g * g + kSmallestSquare;
  const double beta2 = 1 - std::pow(static_cast<double>(step.step), -step.decay);
  const auto moved = [&](const at::Tensor& old, const at::Tensor& now) {
    return old * beta2 + now * (1 - beta2);
  };
  at::Tensor direction;
  if (moments.rows.defined()) {
    const at::Tensor rows = moved(moments.rows, square.mean(1));
    const at::Tensor columns = moved(moments.columns, square.mean(0));
    const at::Tensor roots = at::sqrt(rows);
    direction = g * (root_mean_square(roots) / roots).unsqueeze(1) * at::rsqrt(columns);
    update(moments.rows, rows);
    update(moments.columns, columns);
  } else {
    const at::Tensor second = moved(moments.exp_avg_sq, square);
    direction = g * at::rsqrt(second);
    update(moments.exp_avg_sq, second);
  }
  const at::Tensor size = root_mean_square(value).clamp_min(kSmallestScale);
  direction = direction / root_mean_square(direction).clamp_min(1) * (size * step.learning_rate);
  const at::Tensor momentum = moments.exp_avg * step.beta1 + direction * (1 - step.beta1);
  update(value, value * (1 - step.learning_rate * step.weight_decay) - momentum);
  update(moments.exp_avg, momentum);
}

}  // namespace reynard::training
