#include "reynard/ops/rms_norm_rows.h"

#include "reynard/ops/rows.h"
#include "reynard/tensor/row_tensor.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <optional>

namespace reynard::ops::rows {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const float* floats(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}
float* writable_floats(const at::Tensor& t) {
  return t.defined() ? t.data_ptr<float>() : nullptr;
}
const void* raw(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr() : nullptr;
}

struct Geometry {
  int64_t row_width;
  int64_t rows;
  int64_t groups;
  bool shared_weight;

  Geometry(const at::Tensor& x, const at::Tensor& weight, int64_t num_groups)
      : row_width(x.size(-1)),
        rows(row_width > 0 ? x.numel() / row_width : 0),
        groups(num_groups),
        shared_weight(weight.numel() < row_width) {}
};

// Memory for a result of this shape and dtype: that of a gradient which nobody else holds, since
// memory bounds the loops and each reads an element before it writes it. `gradient` is the only
// reference of whoever asks.
at::Tensor room_for(at::IntArrayRef sizes, at::ScalarType dtype, const at::Tensor& gradient) {
  const bool is_free = gradient.is_cpu() && gradient.is_contiguous() &&
                       gradient.scalar_type() == dtype && gradient.use_count() == 1 &&
                       gradient.storage().use_count() == 1;
  return is_free ? gradient : at::empty(sizes, gradient.options().dtype(dtype));
}

// Gradient of the weight from the sums over rows of all columns.
at::Tensor weight_gradient(const at::Tensor& columns, const Geometry& shape) {
  return shape.shared_weight ? columns.view({shape.groups, -1}).sum(0) : columns;
}

// (rows, groups) f32 for 1 / rms, which a backward pass wants, and a GPU's forward. For a decoded
// token each tensor costs as much as its norm.
at::Tensor room_for_inverse(const at::Tensor& x, int64_t num_groups, bool recorded) {
  if (x.is_cpu() && !recorded) return {};
  const int64_t rows = x.size(-1) > 0 ? x.numel() / x.size(-1) : 0;
  return at::empty({rows, num_groups}, x.options().dtype(at::kFloat));
}

at::Tensor norm(const at::Tensor& x,
                const at::Tensor& gate,
                const at::Tensor& weight,
                double eps,
                int64_t num_groups,
                const at::Tensor& inverse) {
  const Geometry shape(x, weight, num_groups);
  const at::Tensor y = tensor::empty_rows(x.sizes(), x.options());
  const NormForward task{.x = raw(x),
                         .gate = raw(gate),
                         .weight = floats(weight),
                         .shared_weight = shape.shared_weight,
                         .groups = num_groups,
                         .width = shape.row_width / num_groups,
                         .eps = eps,
                         .y = y.data_ptr(),
                         .inverse_rms = writable_floats(inverse)};
  const RowKernels& kernels = row_kernels(x);
  for_rows(x, shape.rows, shape.row_width, [&](int64_t begin, int64_t end) {
    kernels.norm_forward(task, begin, end);
  });
  return y;
}

struct Norm : torch::autograd::Function<Norm> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const std::optional<at::Tensor>& optional_gate,
                            const at::Tensor& weight,
                            double eps,
                            int64_t num_groups) {
    const at::Tensor gate = optional_gate.value_or(at::Tensor());
    const at::Tensor inverse = room_for_inverse(x, num_groups, /*recorded=*/true);
    const at::Tensor y = norm(x, gate, weight, eps, num_groups, inverse);
    context->save_for_backward({x, gate, weight, inverse});
    context->saved_data["groups"] = num_groups;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_derivative("rms_norm");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &gate = saved[1], &weight = saved[2], &inverse = saved[3];
    const Geometry shape(x, weight, context->saved_data["groups"].toInt());
    const at::Tensor dx = room_for(x.sizes(), x.scalar_type(), grads[0]);
    const at::Tensor dy = grads[0].to(x.scalar_type()).contiguous();
    const at::Tensor d_gate = gate.defined() ? at::empty_like(gate) : at::Tensor();
    NormBackward task{.dy = raw(dy),
                      .x = raw(x),
                      .gate = raw(gate),
                      .weight = floats(weight),
                      .shared_weight = shape.shared_weight,
                      .groups = shape.groups,
                      .width = shape.row_width / shape.groups,
                      .inverse_rms = floats(inverse),
                      .dx = dx.data_ptr()};
    if (gate.defined()) task.d_gate = d_gate.data_ptr();
    const RowKernels& kernels = row_kernels(x);
    const at::Tensor columns = sum_over_row_blocks(
        x, shape.rows, shape.row_width, [&](int64_t begin, int64_t end, float* partial) {
          NormBackward block = task;
          block.d_weight = partial;
          kernels.norm_backward(block, begin, end);
        });
    return {dx, d_gate, weight_gradient(columns, shape), {}, {}};
  }
};

NormedSum add_norm(const at::Tensor& x,
                   const at::Tensor& residual,
                   const at::Tensor& weight,
                   double eps,
                   const at::Tensor& inverse) {
  const Geometry shape(x, weight, 1);
  NormedSum result{.normed = tensor::empty_rows(x.sizes(), x.options()),
                   .residual = tensor::empty_rows(residual.sizes(), residual.options())};
  const NormForward task{.x = raw(x),
                         .residual = floats(residual),
                         .weight = floats(weight),
                         .width = shape.row_width,
                         .eps = eps,
                         .y = result.normed.data_ptr(),
                         .sum = result.residual.data_ptr<float>(),
                         .inverse_rms = writable_floats(inverse)};
  const RowKernels& kernels = row_kernels(x);
  for_rows(x, shape.rows, shape.row_width, [&](int64_t begin, int64_t end) {
    kernels.norm_forward(task, begin, end);
  });
  return result;
}

struct AddNorm : torch::autograd::Function<AddNorm> {
  static variable_list forward(AutogradContext* context,
                               const at::Tensor& x,
                               const at::Tensor& residual,
                               const at::Tensor& weight,
                               double eps) {
    const at::Tensor inverse = room_for_inverse(x, 1, /*recorded=*/true);
    const auto [y, sum] = add_norm(x, residual, weight, eps, inverse);
    context->set_materialize_grads(false);
    context->save_for_backward({sum, weight, inverse});
    context->saved_data["dtype"] = static_cast<int64_t>(x.scalar_type());
    return {y, sum};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_derivative("add_rms_norm");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &sum = saved[0], &weight = saved[1], &inverse = saved[2];
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["dtype"].toInt());
    if (!grads[0].defined()) {  // only the residual goes on
      return {grads[1].to(dtype), grads[1], at::zeros_like(weight), {}};
    }
    const Geometry shape(sum, weight, 1);
    const at::Tensor dx = room_for(sum.sizes(), dtype, grads[0]);
    const at::Tensor d_residual =
        grads[1].defined() ? room_for(sum.sizes(), at::kFloat, grads[1]) : at::empty_like(sum);
    const at::Tensor dy = grads[0].to(dtype).contiguous();
    const at::Tensor d_sum = grads[1].defined() ? grads[1].contiguous() : at::Tensor();
    const NormBackward task{.dy = raw(dy),
                            .sum = floats(sum),
                            .d_sum = floats(d_sum),
                            .weight = floats(weight),
                            .width = shape.row_width,
                            .inverse_rms = floats(inverse),
                            .dx = dx.data_ptr(),
                            .d_residual = d_residual.data_ptr<float>()};
    const RowKernels& kernels = row_kernels(dx);
    const at::Tensor d_weight = sum_over_row_blocks(
        sum, shape.rows, shape.row_width, [&](int64_t begin, int64_t end, float* partial) {
          NormBackward block = task;
          block.d_weight = partial;
          kernels.norm_backward(block, begin, end);
        });
    return {dx, d_residual, d_weight, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x,
                    const at::Tensor& gate,
                    const at::Tensor& weight,
                    double eps,
                    int64_t num_groups) {
  const at::Tensor input = x.contiguous(), wide = contiguous_as(at::kFloat, weight);
  const at::Tensor same_gate = contiguous_as(x.scalar_type(), gate);
  if (!is_recorded({x, gate, weight})) {
    const at::Tensor inverse = room_for_inverse(x, num_groups, /*recorded=*/false);
    return norm(input, same_gate, wide, eps, num_groups, inverse);
  }
  std::optional<at::Tensor> recorded_gate;  // an undefined tensor cannot be a Function's argument
  if (gate.defined()) recorded_gate = same_gate;
  return Norm::apply(input, recorded_gate, wide, eps, num_groups);
}

NormedSum add_rms_norm(const at::Tensor& x,
                       const at::Tensor& residual,
                       const at::Tensor& weight,
                       double eps) {
  const at::Tensor input = x.contiguous(), rest = contiguous_as(at::kFloat, residual);
  const at::Tensor wide = contiguous_as(at::kFloat, weight);
  if (!is_recorded({x, residual, weight})) {
    return add_norm(input, rest, wide, eps, room_for_inverse(x, 1, /*recorded=*/false));
  }
  const variable_list out = AddNorm::apply(input, rest, wide, eps);
  return {.normed = out[0], .residual = out[1]};
}

}  // namespace reynard::ops::rows
