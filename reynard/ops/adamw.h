#pragma once
// One AdamW step of many tensors as a single pass over their memory.

#include <ATen/core/Tensor.h>

#include <span>

namespace reynard::ops {

// One tensor's step. value, exp_avg and exp_avg_sq change: contiguous f32 on one device, as is
// `compute`, the copy that products use, which may be undefined.
struct AdamWStep {
  at::Tensor value, compute, exp_avg, exp_avg_sq;
  at::Tensor gradient;  // shape of value; f32, else converted
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  int64_t step = 1;  // this one: 1 at first
};

// Adam with decoupled weight decay (Loshchilov and Hutter 2019, Algorithm 2) on
// gradient * gradient_scale; `compute` becomes the rounded new value, one dtype for all.
// gradient_scale: an f32 scalar on the device of the values, which no one waits for: where it is
// not finite nothing changes. Bits do not depend on how tensors are put together. Throws
// reynard::Error for other dtypes, shapes or layouts and for a step below 1.
void adamw(std::span<const AdamWStep> steps, const at::Tensor& gradient_scale);

}  // namespace reynard::ops
