#pragma once
// gated_act.h as fused loops over rows (ops/rows.h) with their own backward; f32 and bf16.
// Arguments were checked by the caller.

#include "reynard/ops/gated_act.h"

namespace reynard::ops::rows {

at::Tensor gated_act(const at::Tensor& gate_up, Activation act);
at::Tensor gate_mul(const at::Tensor& x, const at::Tensor& gate, Activation act);

}  // namespace reynard::ops::rows
