#pragma once
// The dtype in which the operators of this folder calculate: f64 for f64 input (the reference),
// f32 for everything else.

#include <ATen/core/Tensor.h>

namespace reynard::ops {

inline at::ScalarType arithmetic_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace reynard::ops
