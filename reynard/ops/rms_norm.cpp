#include "reynard/ops/rms_norm.h"

#include "reynard/ops/precision.h"
#include "reynard/ops/rms_norm_rows.h"
#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>

#include <string>

namespace reynard::ops {

namespace {

void check_norm(std::string_view op,
                const at::Tensor& x,
                const at::Tensor& weight,
                int64_t num_groups) {
  tensor::check_value(x.defined() && x.dim() >= 1, op, "x", "a scalar", "at least one dimension");
  tensor::check_dtype(op, "x", x, {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble});
  const int64_t width = x.size(-1);
  if (num_groups < 1 || width % num_groups != 0) {
    tensor::fail(op,
                 "num_groups",
                 std::to_string(num_groups),
                 "a divisor of the last dimension of x, " + std::to_string(width));
  }
  if (weight.defined() && weight.numel() == width / num_groups) {
    tensor::check_shape(op, "weight", weight, {{"C/num_groups", width / num_groups}});
  } else {
    tensor::check_shape(op, "weight", weight, {{"C", width}});
  }
  tensor::check_device(op, "weight", weight, "x", x.device());
}

// In the arithmetic dtype, not rounded to x's.
at::Tensor normalised(const at::Tensor& x,
                      const at::Tensor& weight,
                      double eps,
                      int64_t num_groups) {
  const at::ScalarType dtype = arithmetic_dtype(x);
  const int64_t group = x.size(-1) / num_groups;
  const at::Tensor grouped = x.to(dtype).unflatten(-1, {num_groups, group});
  const at::Tensor inverse = at::rsqrt((grouped * grouped).mean({-1}, /*keepdim=*/true) + eps);
  const at::Tensor per_group = weight.to(dtype).reshape({-1, group});
  return (grouped * inverse * per_group).flatten(-2);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, int64_t num_groups) {
  check_norm("rms_norm", x, weight, num_groups);
  if (has_row_kernels(x)) return rows::rms_norm(x, /*gate=*/{}, weight, eps, num_groups);
  return normalised(x, weight, eps, num_groups).to(x.scalar_type());
}

NormedSum add_rms_norm(const at::Tensor& x,
                       const at::Tensor& residual,
                       const at::Tensor& weight,
                       double eps) {
  check_norm("add_rms_norm", x, weight, 1);
  tensor::check_same_shape("add_rms_norm", "residual", residual, "x", x);
  tensor::check_device("add_rms_norm", "residual", residual, "x", x.device());
  if (has_row_kernels(x)) return rows::add_rms_norm(x, residual, weight, eps);
  const at::Tensor sum = residual.to(arithmetic_dtype(x)) + x;
  return {.normed = normalised(sum, weight, eps, 1).to(x.scalar_type()), .residual = sum};
}

at::Tensor gated_rms_norm(const at::Tensor& x,
                          const at::Tensor& gate,
                          const at::Tensor& weight,
                          double eps,
                          int64_t num_groups) {
  check_norm("gated_rms_norm", x, weight, num_groups);
  tensor::check_same_shape("gated_rms_norm", "gate", gate, "x", x);
  tensor::check_device("gated_rms_norm", "gate", gate, "x", x.device());
  if (has_row_kernels(x)) return rows::rms_norm(x, gate, weight, eps, num_groups);
  const at::Tensor open = at::sigmoid(gate.to(arithmetic_dtype(x)));
  return (normalised(x, weight, eps, num_groups) * open).to(x.scalar_type());
}

}  // namespace reynard::ops
