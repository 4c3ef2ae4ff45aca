// The bounds of pruning.h that come from QK-norm weights.

#include "reynard/attention/pruning.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/maximum.h>

#include <cmath>
#include <string_view>

namespace reynard::attention {

namespace {

at::Tensor per_head_weight(std::string_view arg, const at::Tensor& weight, int64_t num_heads) {
  const at::Tensor wide = weight.detach().to(at::kDouble).abs();
  if (wide.dim() == 1) return wide.unsqueeze(0).expand({num_heads, wide.size(0)});
  tensor::check_value(wide.dim() == 2 && wide.size(0) >= 1 && num_heads % wide.size(0) == 0,
                      "qk_norm_bound",
                      arg,
                      "a tensor of another shape",
                      "(D), or (heads, D) with heads dividing num_heads");
  return wide.repeat_interleave(num_heads / wide.size(0), 0);
}

}  // namespace

at::Tensor qk_norm_bound(const at::Tensor& q_weight,
                         const at::Tensor& k_weight,
                         int64_t num_heads,
                         double scale,
                         bool rotary,
                         at::ScalarType dtype) {
  at::Tensor wq = per_head_weight("q_weight", q_weight, num_heads);
  at::Tensor wk = per_head_weight("k_weight", k_weight, num_heads);
  const int64_t D = wq.size(1);
  tensor::check_value(
      wk.size(1) == D, "qk_norm_bound", "k_weight's D", wk.size(1), "that of q_weight");
  if (rotary) {
    const int64_t half = D / 2;
    wq = at::maximum(wq.slice(1, 0, half), wq.slice(1, half));
    wk = at::maximum(wk.slice(1, 0, half), wk.slice(1, half));
  }
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(D));
  // q and k are rounded once after the norm, and once more after the rotation.
  const double unit = dtype == at::kBFloat16 ? 0x1p-7 : dtype == at::kHalf ? 0x1p-10 : 0x1p-16;
  const double rounding = 1 + (rotary ? 2 : 1) * unit;
  return ((wq * wk).amax({1}) * (scale * static_cast<double>(D) * rounding)).to(at::kFloat);
}

double eviction_limit(double logit_bound, double log_tolerance, double c_now) {
  return log_tolerance - 2 * logit_bound - c_now;
}

}  // namespace reynard::attention
