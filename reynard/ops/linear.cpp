#include "reynard/ops/linear.h"

#include "reynard/ops/few_row_products.h"
#include "reynard/ops/gated_act_rows.h"
#include "reynard/ops/int8_linear.h"
#include "reynard/ops/product.h"
#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <vector>

namespace reynard::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_weight(std::string_view op, const Weight& weight, int64_t inputs) {
  tensor::check_shape(op, "weight", weight.value, {{"O"}, {"I", inputs}});
  if (!weight.compute.defined()) return;
  tensor::check_shape(
      op, "compute", weight.compute, {{"O", weight.value.size(0)}, {"I", weight.value.size(1)}});
}

// What is multiplied: a tensor without a graph.
at::Tensor matrix_of(const Weight& weight) {
  if (weight.compute.defined()) return weight.compute;
  return weight.value.requires_grad() ? weight.value.detach() : weight.value;
}

// Matrices of few rows, like those of the gates, cost as much as their inputs' rows: in the
// backward pass their gradients go through one product together.
constexpr int64_t kFewOutputs = 64;

// Gradients that are multiplied together: dy (N, sum of sizes) and the matrices that they belong
// to.
struct Together {
  std::vector<at::Tensor> dys, matrices;
  std::vector<size_t> weights;  // their indices

  at::Tensor dy() const { return dys.size() == 1 ? dys[0] : at::cat(dys, 1); }
  at::Tensor matrix() const { return matrices.size() == 1 ? matrices[0] : at::cat(matrices); }
};

// matrices[i] belongs to grads[i]; gradients and matrices become `dtype`.
std::vector<Together> grouped(const variable_list& grads,
                              std::span<const at::Tensor> matrices,
                              at::ScalarType dtype) {
  std::vector<Together> groups;
  Together few;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) continue;
    Together one;
    Together& group = matrices[i].size(0) <= kFewOutputs ? few : one;
    group.dys.push_back(grads[i].to(dtype));
    group.matrices.push_back(matrices[i].to(dtype));
    group.weights.push_back(i);
    if (!one.weights.empty()) groups.push_back(std::move(one));
  }
  if (!few.weights.empty()) groups.push_back(std::move(few));
  return groups;
}

// What the products of these weights are formed in: that of the narrowest.
at::ScalarType product_dtype(std::span<const Weight> weights) {
  at::ScalarType dtype = weights[0].value.scalar_type();
  for (const Weight& weight : weights) {
    if (weight.scales.defined()) return at::kBFloat16;
    if (weight.compute.defined()) dtype = weight.compute.scalar_type();
  }
  return dtype;
}

// Whether x or a weight needs gradients. Weights that are trained do even where no graph is
// recorded: what is computed again must have the same bits.
bool is_trained(const at::Tensor& x, std::span<const Weight> weights) {
  return (at::GradMode::is_enabled() && x.requires_grad()) ||
         std::ranges::any_of(weights,
                             [](const Weight& weight) { return weight.value.requires_grad(); });
}

// The products of few rows; empty where the library has to form them.
std::vector<at::Tensor> without_graph(const at::Tensor& x, std::span<const Weight> weights) {
  if (is_trained(x, weights)) return {};
  std::vector<RowWeight> matrices;
  matrices.reserve(weights.size());
  for (const Weight& weight : weights) {
    matrices.push_back({.values = matrix_of(weight), .scales = weight.scales});
    if (!has_few_row_product(x, matrices.back())) return {};
  }
  return few_row_products(x, matrices);
}

at::ScalarType saved_dtype(AutogradContext* context, const char* name) {
  return static_cast<at::ScalarType>(context->saved_data[name].toInt());
}

// x is of the dtype of the products; weights without a compute copy may be wider and are then not
// rounded in the forward pass.
struct Linears : torch::autograd::Function<Linears> {
  static variable_list forward(AutogradContext* context,
                               const at::Tensor& x,
                               at::TensorList values,
                               at::TensorList matrices) {
    variable_list saved = {x}, outputs;
    std::vector<SumOfProducts> sums;
    for (const at::Tensor& matrix : matrices) {
      const bool wider = matrix.scalar_type() != x.scalar_type();
      if (!wider) sums.push_back({.terms = {{x, matrix.t()}}, .out = x.scalar_type()});
      outputs.push_back(wider ? exact_product(x, matrix) : at::Tensor());
      saved.push_back(matrix);
    }
    const std::vector<at::Tensor> formed = sums_of_products(sums);
    auto next = formed.begin();
    for (at::Tensor& output : outputs) {
      if (!output.defined()) output = *next++;
    }
    context->save_for_backward(saved);
    context->saved_data["value_dtype"] = static_cast<int64_t>(values[0].scalar_type());
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_derivative("linear");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::ScalarType value_dtype = saved_dtype(context, "value_dtype");
    const bool wants_dx = context->needs_input_grad(0);
    const auto is_wanted = [&](size_t i) { return context->needs_input_grad(1 + i); };
    std::vector<SumOfProducts> sums;
    std::vector<const Together*> of_weights;  // whose gradients stand in `sums`
    SumOfProducts dx{.terms = {}, .out = x.scalar_type()};
    const std::vector<Together> groups =
        grouped(grads, std::span(saved).subspan(1), x.scalar_type());
    for (const Together& group : groups) {
      const at::Tensor dy = group.dy();
      if (wants_dx) dx.terms.push_back({dy, group.matrix()});
      if (std::none_of(group.weights.begin(), group.weights.end(), is_wanted)) continue;
      sums.push_back({.terms = {{dy.t(), x}}, .out = value_dtype});
      of_weights.push_back(&group);
    }
    if (!dx.terms.empty()) sums.push_back(std::move(dx));
    const std::vector<at::Tensor> formed = sums_of_products(sums);
    variable_list result(1 + 2 * grads.size());
    if (formed.size() > of_weights.size()) result[0] = formed.back();
    for (size_t g = 0; g < of_weights.size(); ++g) {
      int64_t row = 0;
      for (const size_t i : of_weights[g]->weights) {
        const int64_t rows = saved[1 + i].size(0);
        if (is_wanted(i)) result[1 + i] = formed[g].narrow(0, row, rows);
        row += rows;
      }
    }
    return result;
  }
};

struct GatedLinear : torch::autograd::Function<GatedLinear> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& gate_up,
                            const at::Tensor& value,
                            const at::Tensor& matrix,
                            bool silu) {
    context->save_for_backward({gate_up, matrix});
    context->saved_data["silu"] = silu;
    context->saved_data["value_dtype"] = static_cast<int64_t>(value.scalar_type());
    return product(rows::gated_act_forward(gate_up, silu).to(matrix.scalar_type()), matrix.t());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_derivative("gated_linear");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate_up = saved[0], &matrix = saved[1];
    const bool silu = context->saved_data["silu"].toBool();
    const at::ScalarType value_dtype = saved_dtype(context, "value_dtype");
    const at::Tensor dy = grads[0].to(matrix.scalar_type());
    variable_list result(4);
    const bool wants_weight = context->needs_input_grad(1);
    at::Tensor act;
    if (!context->needs_input_grad(0)) {
      if (wants_weight) act = rows::gated_act_forward(gate_up, silu);
    } else if (!wants_weight) {
      result[0] = rows::gated_act_backward(gate_up, product(dy, matrix), silu);
    } else {
      const rows::GatedActAgain again = rows::gated_act_again(gate_up, product(dy, matrix), silu);
      result[0] = again.d_gate_up;
      act = again.act;
    }
    if (wants_weight) result[1] = product(dy.t(), act.to(matrix.scalar_type()), value_dtype);
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> linears(const at::Tensor& x, std::span<const Weight> weights) {
  tensor::check_shape("linear", "x", x, {{"N"}, {"I"}});
  for (const Weight& weight : weights) check_weight("linear", weight, x.size(1));
  const at::ScalarType dtype = product_dtype(weights);
  const at::Tensor input = x.scalar_type() == dtype ? x : x.to(dtype);
  std::vector<at::Tensor> results = without_graph(input, weights);
  if (!results.empty()) return results;
  results.resize(weights.size());
  std::vector<at::Tensor> values, matrices;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].scales.defined()) {
      results[i] = int8_linear(input, {.values = weights[i].value, .scales = weights[i].scales});
    } else {
      values.push_back(weights[i].value);
      matrices.push_back(matrix_of(weights[i]));
    }
  }
  if (values.empty()) return results;
  const variable_list floats =
      Linears::apply(input, at::TensorList(values), at::TensorList(matrices));
  auto next = floats.begin();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!weights[i].scales.defined()) results[i] = *next++;
  }
  return results;
}

at::Tensor linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias) {
  if (bias.defined()) tensor::check_shape("linear", "bias", bias, {{"O", weight.value.size(0)}});
  return add_bias(linears(x, {&weight, 1})[0], bias);
}

at::Tensor logits(const at::Tensor& x, const Weight& weight) {
  tensor::check_shape("logits", "x", x, {{"N"}, {"C"}});
  check_weight("logits", weight, x.size(1));
  const at::NoGradGuard no_grad;
  if (weight.scales.defined()) {
    return int8_linear(x, {.values = weight.value, .scales = weight.scales}, at::kFloat);
  }
  const RowWeight matrix{.values = matrix_of(weight), .scales = {}, .rounds = false};
  const at::Tensor input = x.to(matrix.values.scalar_type());
  if (has_few_row_product(input, matrix)) return few_row_products(input, {&matrix, 1})[0];
  if (input.scalar_type() == at::kDouble) return at::mm(input, matrix.values.t());
  return unrounded_product(input, matrix.values.t());
}

at::Tensor add_bias(const at::Tensor& y, const at::Tensor& bias) {
  return bias.defined() ? (y.to(bias.scalar_type()) + bias).to(y.scalar_type()) : y;
}

at::Tensor gated_linear(const at::Tensor& gate_up, Activation act, const Weight& weight) {
  tensor::check_shape("gated_linear", "gate_up", gate_up, {{"N"}, {"2I"}});
  tensor::check_value(gate_up.size(1) % 2 == 0,
                      "gated_linear",
                      "width of gate_up",
                      gate_up.size(1),
                      "an even number");
  check_weight("gated_linear", weight, gate_up.size(1) / 2);
  if (!has_row_kernels(gate_up) || weight.scales.defined()) {
    return linear(gated_act(gate_up, act), weight);
  }
  const bool silu = act == Activation::kSilu;
  if (gate_up.size(0) <= kFewRows && !is_trained(gate_up, {&weight, 1})) {
    return linear(rows::gated_act_forward(gate_up.contiguous(), silu), weight);
  }
  return GatedLinear::apply(gate_up.contiguous(), weight.value, matrix_of(weight), silu);
}

}  // namespace reynard::ops
