#include "reynard/ops/linear.h"

#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ops/mm.h>

namespace reynard::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The product in the dtype of `compute`; the gradient of its values goes to the master weight.
struct ComputeLinear : torch::autograd::Function<ComputeLinear> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const at::Tensor& compute) {
    const at::Tensor input = x.to(compute.scalar_type());
    context->save_for_backward({input, compute});
    context->saved_data["x_dtype"] = static_cast<int64_t>(x.scalar_type());
    context->saved_data["weight_dtype"] = static_cast<int64_t>(weight.scalar_type());
    return at::mm(input, compute.t());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& compute = saved[1];
    const at::Tensor dy = grads[0].to(compute.scalar_type());
    const auto dtype = [&](const char* name) {
      return static_cast<at::ScalarType>(context->saved_data[name].toInt());
    };
    at::Tensor dx, dw;
    if (context->needs_input_grad(0)) dx = at::mm(dy, compute).to(dtype("x_dtype"));
    if (context->needs_input_grad(1)) dw = at::mm(dy.t(), input).to(dtype("weight_dtype"));
    return {dx, dw, {}};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x,
                  const at::Tensor& weight,
                  const at::Tensor& compute,
                  const at::Tensor& bias) {
  tensor::check_shape("linear", "weight", weight, {{"O"}, {"I"}});
  tensor::check_shape("linear", "x", x, {{"N"}, {"I", weight.size(1)}});
  if (compute.defined()) {
    tensor::check_shape(
        "linear", "compute", compute, {{"O", weight.size(0)}, {"I", weight.size(1)}});
  }
  if (bias.defined()) tensor::check_shape("linear", "bias", bias, {{"O", weight.size(0)}});
  at::Tensor y = compute.defined() ? ComputeLinear::apply(x, weight, compute)
                                   : at::mm(x.to(weight.scalar_type()), weight.t());
  if (bias.defined()) y = (y.to(bias.scalar_type()) + bias).to(y.scalar_type());
  return y;
}

}  // namespace reynard::ops
