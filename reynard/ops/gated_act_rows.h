#pragma once
// gated_act.h as fused loops over rows (ops/rows.h) with their own backward; f32 and bf16.
// Arguments were checked by the caller.

#include "reynard/ops/gated_act.h"

namespace reynard::ops::rows {

at::Tensor gated_act(const at::Tensor& gate_up, Activation act);
at::Tensor gate_mul(const at::Tensor& x, const at::Tensor& gate, Activation act);

// The two passes of gated_act; contiguous gate_up (N, 2I), d_out (N, I) -> d_gate_up (N, 2I).
at::Tensor gated_act_forward(const at::Tensor& gate_up, bool silu);
at::Tensor gated_act_backward(const at::Tensor& gate_up, const at::Tensor& d_out, bool silu);

// Both at once, for who did not keep what the forward pass gave: on the CPU in one loop.
struct GatedActAgain {
  at::Tensor act;        // (N, I)
  at::Tensor d_gate_up;  // (N, 2I)
};
GatedActAgain gated_act_again(const at::Tensor& gate_up, const at::Tensor& d_out, bool silu);

}  // namespace reynard::ops::rows
