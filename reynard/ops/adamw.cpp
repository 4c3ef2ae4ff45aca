#include "reynard/ops/adamw.h"

#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/same_shape.h"

#include <cmath>

namespace reynard::ops {

void adamw(const AdamWTensors& tensors,
           const at::Tensor& gradient,
           const at::Tensor& gradient_scale,
           const AdamWStep& step) {
  const auto& [value, compute, exp_avg, exp_avg_sq] = tensors;
  tensor::check_dtype("adamw", "value", value, {at::kFloat});
  tensor::check_same_shape("adamw", "gradient", gradient, "value", value);
  tensor::check_same_shape("adamw", "exp_avg", exp_avg, "value", value);
  tensor::check_same_shape("adamw", "exp_avg_sq", exp_avg_sq, "value", value);
  if (compute.defined()) tensor::check_same_shape("adamw", "compute", compute, "value", value);
  const at::Tensor dense = gradient.to(at::kFloat).contiguous();
  const auto t = static_cast<double>(step.step);
  const AdamWRow row{.value = value.data_ptr<float>(),
                     .exp_avg = exp_avg.data_ptr<float>(),
                     .exp_avg_sq = exp_avg_sq.data_ptr<float>(),
                     .compute = compute.defined() ? compute.data_ptr() : nullptr,
                     .gradient = dense.const_data_ptr<float>(),
                     .gradient_scale = gradient_scale.const_data_ptr<float>(),
                     .kept = static_cast<float>(1 - step.learning_rate * step.weight_decay),
                     .beta1 = static_cast<float>(step.beta1),
                     .beta2 = static_cast<float>(step.beta2),
                     .rate = static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, t))),
                     .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(step.beta2, t))),
                     .epsilon = static_cast<float>(step.epsilon)};
  const RowKernels& kernels = row_kernels(compute.defined() ? compute : value);
  for_rows(
      value, value.numel(), 1, [&](int64_t begin, int64_t end) { kernels.adamw(row, begin, end); });
}

}  // namespace reynard::ops
