#include "reynard/ops/gated_act_rows.h"

#include "reynard/ops/rows.h"
#include "reynard/tensor/row_tensor.h"

#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace reynard::ops::rows {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

char* bytes_at(const at::Tensor& t, int64_t element) {
  return static_cast<char*>(t.data_ptr()) + element * t.element_size();
}

// gate and x are the two halves of each row of gate_up.
GateRows half_rows(const at::Tensor& gate_up, bool silu) {
  const int64_t width = gate_up.size(1) / 2;
  return {.x = bytes_at(gate_up, width),
          .gate = gate_up.data_ptr(),
          .x_stride = 2 * width,
          .gate_stride = 2 * width,
          .width = width,
          .silu = silu};
}

// The gradient of gate_up; with `act` the forward pass's result is written into it (CPU only).
at::Tensor half_gradients(const at::Tensor& gate_up,
                          const at::Tensor& grad,
                          bool silu,
                          const at::Tensor& act) {
  const at::Tensor d_out = grad.to(gate_up.scalar_type()).contiguous();
  const at::Tensor d_gate_up = at::empty_like(gate_up);
  GateRows task = half_rows(gate_up, silu);
  task.d_out = d_out.const_data_ptr();
  task.d_gate = d_gate_up.data_ptr();
  task.dx = bytes_at(d_gate_up, task.width);
  if (act.defined()) task.out = act.data_ptr();
  const RowKernels& kernels = row_kernels(gate_up);
  for_rows(gate_up, gate_up.size(0), 2 * task.width, [&](int64_t begin, int64_t end) {
    kernels.gate_backward(task, begin, end);
  });
  return d_gate_up;
}

struct GatedAct : torch::autograd::Function<GatedAct> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up, bool silu) {
    context->save_for_backward({gate_up});
    context->saved_data["silu"] = silu;
    return gated_act_forward(gate_up, silu);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_derivative("gated_act");
    const at::Tensor gate_up = context->get_saved_variables()[0];
    return {gated_act_backward(gate_up, grads[0], context->saved_data["silu"].toBool()), {}};
  }
};

// x and gate as one row each: the loops do not need their shape, threads get pieces of kPiece.
constexpr int64_t kPiece = 1024;

GateRows piece_rows(const at::Tensor& x, const at::Tensor& gate, bool silu) {
  return {.x = x.const_data_ptr(),
          .gate = gate.const_data_ptr(),
          .x_stride = kPiece,
          .gate_stride = kPiece,
          .width = kPiece,
          .silu = silu};
}

// Runs a gate loop over whole pieces in parallel and then over the rest.
void for_pieces(const at::Tensor& x,
                const GateRows& task,
                void (*loop)(const GateRows&, int64_t, int64_t)) {
  const int64_t whole = x.numel() / kPiece;
  for_rows(x, whole, kPiece, [&](int64_t begin, int64_t end) { loop(task, begin, end); });
  const int64_t rest = x.numel() - whole * kPiece;
  if (rest == 0) return;
  const int64_t skipped = whole * kPiece * x.element_size();
  const auto after = [&](auto* pointer) {
    using Pointer = decltype(pointer);
    using Byte =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
    return pointer ? static_cast<Pointer>(static_cast<Byte*>(pointer) + skipped) : pointer;
  };
  GateRows last = task;
  last.width = rest;
  last.x = after(task.x);
  last.gate = after(task.gate);
  last.out = after(task.out);
  last.d_out = after(task.d_out);
  last.dx = after(task.dx);
  last.d_gate = after(task.d_gate);
  for_rows(x, 1, rest, [&](int64_t begin, int64_t end) { loop(last, begin, end); });
}

at::Tensor gated(const at::Tensor& x, const at::Tensor& gate, bool silu) {
  const at::Tensor out = tensor::empty_rows(x.sizes(), x.options());
  GateRows task = piece_rows(x, gate, silu);
  task.out = out.data_ptr();
  for_pieces(x, task, row_kernels(x).gate_forward);
  return out;
}

struct GateMul : torch::autograd::Function<GateMul> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& gate,
                            bool silu) {
    const at::Tensor out = gated(x, gate, silu);
    context->save_for_backward({x, gate});
    context->saved_data["silu"] = silu;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_derivative("gate_mul");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor d_out = grads[0].to(saved[0].scalar_type()).contiguous();
    const at::Tensor dx = at::empty_like(saved[0]);
    const at::Tensor d_gate = at::empty_like(saved[1]);
    GateRows task = piece_rows(saved[0], saved[1], context->saved_data["silu"].toBool());
    task.d_out = d_out.const_data_ptr();
    task.dx = dx.data_ptr();
    task.d_gate = d_gate.data_ptr();
    for_pieces(dx, task, row_kernels(dx).gate_backward);
    return {dx, d_gate, {}};
  }
};

}  // namespace

at::Tensor gated_act_forward(const at::Tensor& gate_up, bool silu) {
  GateRows task = half_rows(gate_up, silu);
  const at::Tensor out = tensor::empty_rows({gate_up.size(0), task.width}, gate_up.options());
  task.out = out.data_ptr();
  const RowKernels& kernels = row_kernels(gate_up);
  for_rows(gate_up, gate_up.size(0), 2 * task.width, [&](int64_t begin, int64_t end) {
    kernels.gate_forward(task, begin, end);
  });
  return out;
}

at::Tensor gated_act_backward(const at::Tensor& gate_up, const at::Tensor& grad, bool silu) {
  return half_gradients(gate_up, grad, silu, /*act=*/{});
}

GatedActAgain gated_act_again(const at::Tensor& gate_up, const at::Tensor& grad, bool silu) {
  if (!gate_up.is_cpu()) {
    return {.act = gated_act_forward(gate_up, silu),
            .d_gate_up = gated_act_backward(gate_up, grad, silu)};
  }
  const at::Tensor act = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  return {.act = act, .d_gate_up = half_gradients(gate_up, grad, silu, act)};
}

at::Tensor gated_act(const at::Tensor& gate_up, Activation act) {
  const bool silu = act == Activation::kSilu;
  if (!is_recorded({gate_up})) return gated_act_forward(gate_up.contiguous(), silu);
  return GatedAct::apply(gate_up.contiguous(), silu);
}

at::Tensor gate_mul(const at::Tensor& x, const at::Tensor& gate, Activation act) {
  const at::Tensor input = x.contiguous(), same = gate.to(x.scalar_type()).contiguous();
  const bool silu = act == Activation::kSilu;
  return is_recorded({x, gate}) ? GateMul::apply(input, same, silu) : gated(input, same, silu);
}

}  // namespace reynard::ops::rows
