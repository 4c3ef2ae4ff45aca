#pragma once
// rotary.h as a fused CPU loop with its own backward; f32 and bf16. Arguments were checked by the
// caller.

#include <ATen/core/Tensor.h>

namespace reynard::ops::cpu {

at::Tensor rotary(const at::Tensor& x, const at::Tensor& positions, double base);

}  // namespace reynard::ops::cpu
