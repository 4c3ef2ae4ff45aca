#include "reynard/ops/gated_act.h"

#include "reynard/ops/gated_act_rows.h"
#include "reynard/ops/precision.h"
#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

namespace reynard::ops {

namespace {

at::Tensor activate(const at::Tensor& gate, Activation act) {
  return act == Activation::kSilu ? at::silu(gate) : at::sigmoid(gate);
}

}  // namespace

at::Tensor gated_act(const at::Tensor& gate_up, Activation act) {
  tensor::check_shape("gated_act", "gate_up", gate_up, {{"N"}, {"2I"}});
  tensor::check_value(
      gate_up.size(1) % 2 == 0, "gated_act", "width of gate_up", gate_up.size(1), "an even number");
  if (has_row_kernels(gate_up)) return rows::gated_act(gate_up, act);
  const int64_t width = gate_up.size(1) / 2;
  return gate_mul(gate_up.narrow(1, width, width), gate_up.narrow(1, 0, width), act);
}

at::Tensor gate_mul(const at::Tensor& x, const at::Tensor& gate, Activation act) {
  tensor::check_same_shape("gate_mul", "gate", gate, "x", x);
  tensor::check_device("gate_mul", "gate", gate, "x", x.device());
  if (has_row_kernels(x)) return rows::gate_mul(x, gate, act);
  const at::ScalarType dtype = arithmetic_dtype(x);
  return (activate(gate.to(dtype), act) * x.to(dtype)).to(x.scalar_type());
}

}  // namespace reynard::ops
