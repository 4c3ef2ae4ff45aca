#pragma once
// Root-mean-square normalisation over the last dimension, whole or in groups (one group per head).
// Differentiable; arithmetic in f32 (f64 for f64 input), the result has x's dtype.

#include <ATen/core/Tensor.h>

namespace reynard::ops {

// y = x / sqrt(mean(x^2) + eps) * weight.
//   x (..., C), weight (C) or, with num_groups > 1, (C) (own weight per group) or (C/num_groups)
//   (shared): the mean runs over each of the num_groups contiguous groups of the last dimension.
// Of all norms here the backward pass on a GPU throws reynard::Error for rows whose sums its shared
// memory does not hold: more than 46,488 columns on an H100, 29,055 where 4 does not divide them.
at::Tensor rms_norm(const at::Tensor& x,
                    const at::Tensor& weight,
                    double eps,
                    int64_t num_groups = 1);

struct NormedSum {
  at::Tensor normed;    // (N, C) dtype of x
  at::Tensor residual;  // (N, C) f32: residual + x
};

// residual' = residual + x in f32, normed = rms_norm(residual') in x's dtype: the pre-norm block's
// pair.
NormedSum add_rms_norm(const at::Tensor& x,
                       const at::Tensor& residual,
                       const at::Tensor& weight,
                       double eps);

// rms_norm(x; weight, groups) * sigmoid(gate), rounded once (FoX Pro output norm and gate).
at::Tensor gated_rms_norm(const at::Tensor& x,
                          const at::Tensor& gate,
                          const at::Tensor& weight,
                          double eps,
                          int64_t num_groups);

}  // namespace reynard::ops
