#pragma once
// Attention variants: each is one function that fills the bias sums c of queries and keys; the
// kernels know nothing else of them. The bias of query i and key j is c_i - c_j.

#include "reynard/attention/bias_limits.h"

#include <ATen/core/Tensor.h>

namespace reynard::attention {

// Forgetting (FoX eq. 5): c_t = sum_{l <= t} log f_l in f64, log f clamped at -1e3 with zero
// gradient where it is below (f = 0). Differentiable: the gradient is a true reverse running sum in
// f64. Data-independent and fixed gates are a constant log gate.
//   log_gate  (B, T, H) f32 | f64 <= 0  ->  (B, H, T) f64
//   first_key (B, Tq) i32, Tq <= T, of the last Tq positions: where a query sees no key before its
//             own position (a document's start, padding) that gate has no effect, so the reverse
//             sum starts anew and its gradient is exactly 0; undefined: one document
// NaN or positive gates and first keys that decrease or are negative are a reynard::Error when
// REYNARD_DEBUG_CHECKS=1 is set in the environment.
at::Tensor gate_sums(const at::Tensor& log_gate, const at::Tensor& first_key = {});

// ALiBi: c_t = -slope_h * t (a constant gate f has slope -ln f).
//   slopes (H) >= 0  ->  (1, H, T) f64, expandable over B
at::Tensor alibi_sums(const at::Tensor& slopes, int64_t T);

}  // namespace reynard::attention
