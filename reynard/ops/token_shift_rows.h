#pragma once
// token_shift.h as a fused loop over rows (ops/rows.h) with its own backward; f32 and bf16.
// Arguments were checked by the caller.

#include <ATen/core/Tensor.h>

namespace reynard::ops::rows {

at::Tensor token_shift(const at::Tensor& x,
                       const at::Tensor& shift_logit,
                       const at::Tensor& starts,
                       const at::Tensor& previous);

}  // namespace reynard::ops::rows
