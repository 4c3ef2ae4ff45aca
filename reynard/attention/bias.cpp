#include "reynard/attention/bias.h"

#include "reynard/attention/arguments.h"
#include "reynard/attention/part_kernels.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <ATen/ops/arange.h>

#include <optional>
#include <string>

namespace reynard::attention {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

void check_gates(const at::Tensor& log_gate, const OptionalTensor& first_key) {
  tensor::check_shape("gate_sums", "log_gate", log_gate, {{"B"}, {"T"}, {"H"}});
  tensor::check_dtype("gate_sums", "log_gate", log_gate, {at::kFloat, at::kDouble});
  if (first_key) {
    const int64_t T = log_gate.size(1);
    tensor::check_shape("gate_sums", "first_key", *first_key, {{"B", log_gate.size(0)}, {"Tq"}});
    tensor::check_value(first_key->size(1) <= T,
                        "gate_sums",
                        "queries of first_key",
                        first_key->size(1),
                        "at most the gates of a row, " + std::to_string(T));
    tensor::check_dtype("gate_sums", "first_key", *first_key, {at::kInt});
    tensor::check_device("gate_sums", "first_key", *first_key, "log_gate", log_gate.device());
    check_first_key_values("gate_sums", "first_key", *first_key);
  }
  check_values(
      "gate_sums",
      "log_gate",
      log_gate,
      [](const at::Tensor& t) { return t.le(0); },  // so that NaN fails too
      "log gates <= 0 (pass logsigmoid of the gate's logits)");
}

at::Tensor gate_sums_strided(const at::Tensor& log_gate, const OptionalTensor& first_key) {
  check_gates(log_gate, first_key);
  return part_kernels(log_gate).gate_sums(log_gate.contiguous());
}

at::Tensor gate_sums_meta(const at::Tensor& log_gate, const OptionalTensor& /*first_key*/) {
  const auto sizes = log_gate.sym_sizes();
  return log_gate.new_empty_symint({sizes[0], sizes[2], sizes[1]},
                                   log_gate.options().dtype(at::kDouble));
}

at::Tensor gate_sums_backward_strided(const at::Tensor& dsums,
                                      const at::Tensor& log_gate,
                                      const OptionalTensor& first_key) {
  check_gates(log_gate, first_key);
  const tensor::Dim B = {"B", log_gate.size(0)}, H = {"H", log_gate.size(2)};
  tensor::check_shape("gate_sums", "dsums", dsums, {B, H, {"T", log_gate.size(1)}});
  tensor::check_dtype("gate_sums", "dsums", dsums, {at::kDouble});
  tensor::check_device("gate_sums", "dsums", dsums, "log_gate", log_gate.device());
  return part_kernels(log_gate).gate_sums_backward(
      dsums.contiguous(),
      log_gate.contiguous(),
      first_key ? first_key->contiguous() : at::Tensor());
}

at::Tensor gate_sums_backward_meta(const at::Tensor& /*dsums*/,
                                   const at::Tensor& log_gate,
                                   const OptionalTensor& /*first_key*/) {
  return log_gate.new_empty_symint(log_gate.sym_sizes());
}

at::Tensor call_gate_sums(const at::Tensor& log_gate, const OptionalTensor& first_key) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("reynard::gate_sums", "")
                             .typed<decltype(gate_sums_strided)>();
  return op.call(log_gate, first_key);
}

at::Tensor call_gate_sums_backward(const at::Tensor& dsums,
                                   const at::Tensor& log_gate,
                                   const OptionalTensor& first_key) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("reynard::gate_sums_backward", "")
                             .typed<decltype(gate_sums_backward_strided)>();
  return op.call(dsums, log_gate, first_key);
}

struct GateSums : torch::autograd::Function<GateSums> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& log_gate,
                            const OptionalTensor& first_key) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({log_gate, first_key.value_or(at::Tensor())});
    return call_gate_sums(log_gate, first_key);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const OptionalTensor first_key = saved[1].defined() ? OptionalTensor(saved[1]) : std::nullopt;
    return {call_gate_sums_backward(grads[0], saved[0], first_key), at::Tensor()};
  }
};

at::Tensor gate_sums_autograd(const at::Tensor& log_gate, const OptionalTensor& first_key) {
  return GateSums::apply(log_gate, first_key);
}

TORCH_LIBRARY_FRAGMENT(reynard, m) {
  m.def("gate_sums(Tensor log_gate, Tensor? first_key=None) -> Tensor");
  m.def("gate_sums_backward(Tensor dsums, Tensor log_gate, Tensor? first_key=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(reynard, CPU, m) {
  m.impl("gate_sums", gate_sums_strided);
  m.impl("gate_sums_backward", gate_sums_backward_strided);
}
TORCH_LIBRARY_IMPL(reynard, CUDA, m) {
  m.impl("gate_sums", gate_sums_strided);
  m.impl("gate_sums_backward", gate_sums_backward_strided);
}
TORCH_LIBRARY_IMPL(reynard, Meta, m) {
  m.impl("gate_sums", gate_sums_meta);
  m.impl("gate_sums_backward", gate_sums_backward_meta);
}
TORCH_LIBRARY_IMPL(reynard, Autograd, m) {
  m.impl("gate_sums", gate_sums_autograd);
  m.impl("gate_sums_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

at::Tensor gate_sums(const at::Tensor& log_gate, const at::Tensor& first_key) {
  return call_gate_sums(log_gate,
                        first_key.defined() ? OptionalTensor(first_key) : OptionalTensor());
}

at::Tensor alibi_sums(const at::Tensor& slopes, int64_t T) {
  tensor::check_shape("alibi_sums", "slopes", slopes, {{"H"}});
  tensor::check_value(T >= 0, "alibi_sums", "T", T, "a length >= 0");
  const at::Tensor positions = at::arange(T, slopes.options().dtype(at::kDouble));
  return (slopes.to(at::kDouble).unsqueeze(-1) * -positions).unsqueeze(0);
}

}  // namespace reynard::attention
