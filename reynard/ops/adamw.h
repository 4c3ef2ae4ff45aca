#pragma once
// One AdamW step of one tensor as a single pass over its memory.

#include <ATen/core/Tensor.h>

namespace reynard::ops {

struct AdamWStep {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  int64_t step = 1;  // this one: 1 at first
};

// What changes, contiguous f32 on one device; `compute`, the bf16 copy that products use, may be
// undefined.
struct AdamWTensors {
  at::Tensor value, compute, exp_avg, exp_avg_sq;
};

// Adam with decoupled weight decay (Loshchilov and Hutter 2019, Algorithm 2) on
// gradient * gradient_scale; `compute` becomes the rounded new value. gradient: f32 as value.
// gradient_scale: an f32 scalar on the device of value, which no one waits for: where it is not
// finite nothing changes.
void adamw(const AdamWTensors& tensors,
           const at::Tensor& gradient,
           const at::Tensor& gradient_scale,
           const AdamWStep& step);

}  // namespace reynard::ops
