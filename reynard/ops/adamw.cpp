#include "reynard/ops/adamw.h"

#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/same_shape.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace reynard::ops {

namespace {

void check(const AdamWStep& step) {
  tensor::check_dtype("adamw", "value", step.value, {at::kFloat});
  tensor::check_same_shape("adamw", "gradient", step.gradient, "value", step.value);
  tensor::check_same_shape("adamw", "exp_avg", step.exp_avg, "value", step.value);
  tensor::check_same_shape("adamw", "exp_avg_sq", step.exp_avg_sq, "value", step.value);
  if (step.compute.defined()) {
    tensor::check_same_shape("adamw", "compute", step.compute, "value", step.value);
  }
  for (const auto& [arg, t] : {std::pair("value", &step.value),
                               std::pair("exp_avg", &step.exp_avg),
                               std::pair("exp_avg_sq", &step.exp_avg_sq),
                               std::pair("compute", &step.compute)}) {
    tensor::check_value(!t->defined() || t->is_contiguous(),
                        "adamw",
                        "layout of " + std::string(arg),
                        "strided",
                        "a contiguous tensor, which is written in the order of memory");
  }
  tensor::check_value(step.step >= 1, "adamw", "step", step.step, "1 or more");
}

AdamWTensor tensor_of(const AdamWStep& step, const at::Tensor& gradient, int64_t first) {
  const auto t = static_cast<double>(step.step);
  return {.value = step.value.data_ptr<float>(),
          .exp_avg = step.exp_avg.data_ptr<float>(),
          .exp_avg_sq = step.exp_avg_sq.data_ptr<float>(),
          .compute = step.compute.defined() ? step.compute.data_ptr() : nullptr,
          .gradient = gradient.const_data_ptr<float>(),
          .first = first,
          .size = step.value.numel(),
          .kept = static_cast<float>(1 - step.learning_rate * step.weight_decay),
          .beta1 = static_cast<float>(step.beta1),
          .beta2 = static_cast<float>(step.beta2),
          .rate = static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, t))),
          .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(step.beta2, t))),
          .epsilon = static_cast<float>(step.epsilon)};
}

}  // namespace

void adamw(std::span<const AdamWStep> steps, const at::Tensor& gradient_scale) {
  if (steps.empty()) return;
  std::vector<at::Tensor> gradients;
  std::vector<AdamWTensor> tensors;
  at::Tensor elements = steps[0].value;  // whose dtype `compute` has
  int64_t size = 0;
  for (const AdamWStep& step : steps) {
    check(step);
    if (step.compute.defined()) {
      if (elements.scalar_type() == at::kFloat) elements = step.compute;
      tensor::check_dtype("adamw", "compute", step.compute, {elements.scalar_type()});
    }
    gradients.push_back(step.gradient.to(at::kFloat).contiguous());
    tensors.push_back(tensor_of(step, gradients.back(), size));
    size += step.value.numel();
  }
  const AdamWTask task{.tensors = tensors.data(),
                       .num_tensors = static_cast<int64_t>(tensors.size()),
                       .gradient_scale = gradient_scale.const_data_ptr<float>()};
  const RowKernels& kernels = row_kernels(elements);
  for_rows(elements, size, 1, [&](int64_t begin, int64_t end) { kernels.adamw(task, begin, end); });
}

}  // namespace reynard::ops
