#pragma once
// rotary.h as a fused loop over rows (ops/rows.h) with its own backward; f32 and bf16. Arguments
// were checked by the caller.

#include "reynard/ops/rotary_scaling.h"

#include <ATen/core/Tensor.h>

namespace reynard::ops::rows {

at::Tensor rotary(const at::Tensor& x,
                  const at::Tensor& positions,
                  double base,
                  const RotaryScaling& scaling);

}  // namespace reynard::ops::rows
