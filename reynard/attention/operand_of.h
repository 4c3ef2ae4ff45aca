#pragma once
// Tensors as the operands of kernels, which neither own nor copy them.

#include "reynard/attention/operand.h"

#include <ATen/core/Tensor.h>

namespace reynard::attention {

// x f32, bf16 or f16.
Element element_of(const at::Tensor& x);

// x (B, T, heads, D) with a contiguous last dimension, f32, bf16 or f16.
Operand operand_of(const at::Tensor& x);

}  // namespace reynard::attention
