#include "reynard/ops/adamw.h"

#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace reynard::ops {

namespace {

// Whose dtype the loops write: a copy that products use, or a value where there is none.
const at::Tensor& written(std::span<const AdamWStep> steps) {
  const auto copied =
      std::ranges::find_if(steps, [](const AdamWStep& step) { return step.compute.defined(); });
  return copied == steps.end() ? steps[0].value : copied->compute;
}

void check(const AdamWStep& step, const AdamWStep& first, at::ScalarType compute_dtype) {
  tensor::check_dtype("adamw", "value", step.value, {at::kFloat});
  tensor::check_same_shape("adamw", "gradient", step.gradient, "value", step.value);
  tensor::check_same_shape("adamw", "exp_avg", step.exp_avg, "value", step.value);
  tensor::check_same_shape("adamw", "exp_avg_sq", step.exp_avg_sq, "value", step.value);
  tensor::check_dtype("adamw", "exp_avg", step.exp_avg, {at::kFloat});
  tensor::check_dtype("adamw", "exp_avg_sq", step.exp_avg_sq, {at::kFloat});
  if (step.compute.defined()) {
    tensor::check_same_shape("adamw", "compute", step.compute, "value", step.value);
    tensor::check_dtype("adamw", "compute", step.compute, {at::kFloat, at::kBFloat16});
    tensor::check_dtype("adamw", "compute of a later step", step.compute, {compute_dtype});
  }
  const at::Device device = first.value.device();
  tensor::check_device("adamw", "gradient", step.gradient, "the first value", device);
  for (const auto& [arg, t] : {std::pair("value", &step.value),
                               std::pair("exp_avg", &step.exp_avg),
                               std::pair("exp_avg_sq", &step.exp_avg_sq),
                               std::pair("compute", &step.compute)}) {
    tensor::check_value(!t->defined() || t->is_contiguous(),
                        "adamw",
                        "layout of " + std::string(arg),
                        "strided",
                        "a contiguous tensor, which is written in the order of memory");
    tensor::check_device("adamw", arg, *t, "the first value", device);
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
  const at::Tensor& elements = written(steps);
  for (const AdamWStep& step : steps) check(step, steps[0], elements.scalar_type());
  tensor::check_value(has_row_kernels(elements),
                      "adamw",
                      "device of value",
                      elements.device().str(),
                      "cpu, or cuda once libreynard_cuda.so is open");
  tensor::check_dtype("adamw", "gradient_scale", gradient_scale, {at::kFloat});
  tensor::check_device("adamw", "gradient_scale", gradient_scale, "value", elements.device());
  std::vector<at::Tensor> gradients;
  std::vector<AdamWTensor> tensors;
  int64_t size = 0;
  for (const AdamWStep& step : steps) {
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
