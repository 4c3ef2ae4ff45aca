#pragma once
// The norms of rms_norm.h as fused loops over rows (ops/rows.h) with their own backward; f32 and
// bf16. Arguments were checked by the caller.

#include "reynard/ops/rms_norm.h"

namespace reynard::ops::rows {

// gate may be undefined.
at::Tensor rms_norm(const at::Tensor& x,
                    const at::Tensor& gate,
                    const at::Tensor& weight,
                    double eps,
                    int64_t num_groups);

NormedSum add_rms_norm(const at::Tensor& x,
                       const at::Tensor& residual,
                       const at::Tensor& weight,
                       double eps);

}  // namespace reynard::ops::rows
