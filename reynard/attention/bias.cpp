#include "reynard/attention/bias.h"

#include "reynard/attention/arguments.h"
#include "reynard/tensor/check.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>

namespace reynard::attention {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

void check_log_gate(const at::Tensor& log_gate) {
  tensor::check_shape("gate_sums", "log_gate", log_gate, {{"B"}, {"T"}, {"H"}});
  tensor::check_dtype("gate_sums", "log_gate", log_gate, {at::kFloat, at::kDouble});
  if (!debug_checks()) return;
  // Written so that NaN fails too.
  const at::Tensor allowed = log_gate.le(0).all();
  tensor::check_value(allowed.item<bool>(),
                      "gate_sums",
                      "log_gate",
                      "a tensor with NaN or positive values",
                      "log gates <= 0 (pass logsigmoid of the gate's logits)");
}

// Running sums along T, one (batch, head) row per step of the parallel loop.
template <class Scalar>
void running_sums(const at::Tensor& log_gate, at::Tensor& sums) {
  const int64_t B = log_gate.size(0), T = log_gate.size(1), H = log_gate.size(2);
  const Scalar* gates = log_gate.const_data_ptr<Scalar>();
  double* c = sums.mutable_data_ptr<double>();
  at::parallel_for(0, B * H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const Scalar* in = gates + (row / H) * T * H + row % H;
      double sum = 0;
      for (int64_t t = 0; t < T; ++t) {
        sum += std::max(static_cast<double>(in[t * H]), kSmallestLogGate);
        c[row * T + t] = sum;
      }
    }
  });
}

at::Tensor gate_sums_cpu(const at::Tensor& log_gate, const OptionalTensor& /*first_key*/) {
  check_log_gate(log_gate);
  const at::Tensor gates = log_gate.contiguous();
  at::Tensor sums =
      at::empty({gates.size(0), gates.size(2), gates.size(1)}, gates.options().dtype(at::kDouble));
  if (gates.scalar_type() == at::kDouble) {
    running_sums<double>(gates, sums);
  } else {
    running_sums<float>(gates, sums);
  }
  return sums;
}

at::Tensor gate_sums_meta(const at::Tensor& log_gate, const OptionalTensor& /*first_key*/) {
  const auto sizes = log_gate.sym_sizes();
  return log_gate.new_empty_symint({sizes[0], sizes[2], sizes[1]},
                                   log_gate.options().dtype(at::kDouble));
}

template <class Scalar>
void reverse_sums(const at::Tensor& dsums,
                  const at::Tensor& log_gate,
                  const at::Tensor& first_key,
                  at::Tensor& dgate) {
  const int64_t B = log_gate.size(0), T = log_gate.size(1), H = log_gate.size(2);
  const Scalar* gates = log_gate.const_data_ptr<Scalar>();
  const double* dc = dsums.const_data_ptr<double>();
  Scalar* out = dgate.mutable_data_ptr<Scalar>();
  const int64_t Tq = first_key.defined() ? first_key.size(1) : 0;
  const int32_t* first = first_key.defined() ? first_key.const_data_ptr<int32_t>() : nullptr;
  at::parallel_for(0, B * H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / H;
      double sum = 0;
      for (int64_t t = T - 1; t >= 0; --t) {
        const int64_t index = (b * T + t) * H + row % H;
        const int64_t query = t - (T - Tq);
        sum += dc[row * T + t];
        if (query >= 0 && first[b * Tq + query] >= t) {
          out[index] = 0;
          sum = 0;
        } else {
          const bool clamped = static_cast<double>(gates[index]) < kSmallestLogGate;
          out[index] = clamped ? Scalar(0) : static_cast<Scalar>(sum);
        }
      }
    }
  });
}

at::Tensor gate_sums_backward_cpu(const at::Tensor& dsums,
                                  const at::Tensor& log_gate,
                                  const OptionalTensor& first_key) {
  const at::Tensor gates = log_gate.contiguous();
  const at::Tensor first = first_key ? first_key->contiguous() : at::Tensor();
  at::Tensor dgate = at::empty(gates.sizes(), gates.options());
  if (gates.scalar_type() == at::kDouble) {
    reverse_sums<double>(dsums.contiguous(), gates, first, dgate);
  } else {
    reverse_sums<float>(dsums.contiguous(), gates, first, dgate);
  }
  return dgate;
}

at::Tensor gate_sums_backward_meta(const at::Tensor& /*dsums*/,
                                   const at::Tensor& log_gate,
                                   const OptionalTensor& /*first_key*/) {
  return log_gate.new_empty_symint(log_gate.sym_sizes());
}

at::Tensor call_gate_sums(const at::Tensor& log_gate, const OptionalTensor& first_key) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("reynard::gate_sums", "")
                             .typed<decltype(gate_sums_cpu)>();
  return op.call(log_gate, first_key);
}

at::Tensor call_gate_sums_backward(const at::Tensor& dsums,
                                   const at::Tensor& log_gate,
                                   const OptionalTensor& first_key) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("reynard::gate_sums_backward", "")
                             .typed<decltype(gate_sums_backward_cpu)>();
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
  m.impl("gate_sums", gate_sums_cpu);
  m.impl("gate_sums_backward", gate_sums_backward_cpu);
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
  check_log_gate(log_gate);
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
