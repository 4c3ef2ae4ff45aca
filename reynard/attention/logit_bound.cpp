// The bounds of pruning.h that come from QK-norm weights.

#include "reynard/attention/pruning.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/row_tensor.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>

#include <cmath>
#include <limits>
#include <string_view>

namespace reynard::attention {

namespace {

// NaN wins: a bound must not hide it.
double larger_or_nan(double a, double b) {
  return a > b || std::isnan(a) ? a : b;
}

void check_weight(std::string_view arg, const at::Tensor& weight, int64_t num_heads) {
  const bool fits = weight.dim() == 1 ||
                    (weight.dim() == 2 && weight.size(0) >= 1 && num_heads % weight.size(0) == 0);
  tensor::check_value(fits,
                      "qk_norm_bound",
                      arg,
                      "a tensor of another shape",
                      "(D), or (heads, D) with heads dividing num_heads");
}

// (H, D) in f32 or f64; a view where no heads, or all, share a weight.
at::Tensor per_head_weight(const at::Tensor& weight, int64_t num_heads) {
  const at::Tensor known = weight.detach();
  const at::Tensor wide = known.scalar_type() == at::kFloat ? known : known.to(at::kDouble);
  const at::Tensor rows = wide.dim() == 1 ? wide.unsqueeze(0) : wide;
  const int64_t G = rows.size(0), D = rows.size(1);
  return rows.unsqueeze(1).expand({G, num_heads / G, D}).reshape({num_heads, D});
}

// (H): the largest |wq_d wk_d| of each head; rotary: over pairs of the products of their maxima.
// Training asks in every layer: few operations.
at::Tensor largest_products(const at::Tensor& q_weight,
                            const at::Tensor& k_weight,
                            int64_t num_heads,
                            bool rotary) {
  at::Tensor wq = per_head_weight(q_weight, num_heads), wk = per_head_weight(k_weight, num_heads);
  if (rotary) {
    const int64_t half = wq.size(1) / 2;
    wq = at::maximum(wq.slice(1, 0, half).abs(), wq.slice(1, half).abs());
    wk = at::maximum(wk.slice(1, 0, half).abs(), wk.slice(1, half).abs());
  }
  return at::linalg_vector_norm(wq * wk, std::numeric_limits<double>::infinity(), {1});
}

// The same of f32 weights on the host, times a factor, as the bounds are wanted: decoding asks in
// every layer of every step, where each tensor operation costs as much as all of these products.
at::Tensor bounds_on_host(const at::Tensor& q_weight,
                          const at::Tensor& k_weight,
                          int64_t num_heads,
                          bool rotary,
                          double factor) {
  const int64_t D = q_weight.size(-1), half = D / 2;
  at::Tensor bounds = tensor::empty_rows({num_heads}, at::kFloat);
  const auto row = [&](const at::Tensor& weight, int64_t h) {
    const int64_t rows = weight.dim() == 1 ? 1 : weight.size(0);
    return weight.const_data_ptr<float>() + h * rows / num_heads * D;
  };
  for (int64_t h = 0; h < num_heads; ++h) {
    const float *wq = row(q_weight, h), *wk = row(k_weight, h);
    double most = 0;
    for (int64_t d = 0; d < (rotary ? half : D); ++d) {
      double q = std::abs(wq[d]), k = std::abs(wk[d]);
      if (rotary) {
        q = larger_or_nan(q, std::abs(wq[d + half]));
        k = larger_or_nan(k, std::abs(wk[d + half]));
      }
      most = larger_or_nan(most, q * k);
    }
    bounds.mutable_data_ptr<float>()[h] = static_cast<float>(most * factor);
  }
  return bounds;
}

double unit_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-7 : dtype == at::kHalf ? 0x1p-10 : 0x1p-16;
}

// q and k are rounded once after the norm, and once more after the rotation.
double rounding_of(at::ScalarType dtype, bool rotary) {
  return 1 + (rotary ? 2 : 1) * unit_of(dtype);
}

double default_scale(double scale, int64_t D) {
  return scale == 0 ? 1 / std::sqrt(static_cast<double>(D)) : scale;
}

}  // namespace

at::Tensor qk_norm_bound(const at::Tensor& q_weight,
                         const at::Tensor& k_weight,
                         int64_t num_heads,
                         double scale,
                         bool rotary,
                         at::ScalarType dtype) {
  check_weight("q_weight", q_weight, num_heads);
  check_weight("k_weight", k_weight, num_heads);
  const int64_t D = q_weight.size(-1);
  tensor::check_value(k_weight.size(-1) == D,
                      "qk_norm_bound",
                      "k_weight's D",
                      k_weight.size(-1),
                      "that of q_weight");
  const double factor =
      default_scale(scale, D) * static_cast<double>(D) * rounding_of(dtype, rotary);
  const auto is_on_host = [](const at::Tensor& weight) {
    return weight.is_cpu() && weight.scalar_type() == at::kFloat && weight.is_contiguous();
  };
  if (is_on_host(q_weight) && is_on_host(k_weight)) {
    return bounds_on_host(q_weight, k_weight, num_heads, rotary, factor);
  }
  return (largest_products(q_weight, k_weight, num_heads, rotary) * factor).to(at::kFloat);
}

at::Tensor qk_norm_bound_of_int8_keys(const at::Tensor& q_weight,
                                      const at::Tensor& k_weight,
                                      int64_t num_heads,
                                      double scale,
                                      bool rotary,
                                      at::ScalarType dtype) {
  const at::Tensor bound = qk_norm_bound(q_weight, k_weight, num_heads, scale, rotary, dtype);
  const int64_t D = q_weight.size(-1);
  const at::Tensor q = per_head_weight(q_weight, num_heads).abs().amax(1);
  const at::Tensor k = per_head_weight(k_weight, num_heads).abs().amax(1);
  // Half a step per value; a step is a 127th of the row's largest, rounded up to 16 bits.
  const double half_step = (1 + 0x1p-14) / 254;
  const double error = default_scale(scale, D) * std::pow(static_cast<double>(D), 1.5) * half_step *
                       rounding_of(dtype, rotary);
  // What several queries attend to is rounded to dtype once more.
  return ((bound.to(at::kDouble) + (q * k).to(at::kDouble) * error) * (1 + unit_of(dtype)))
      .to(at::kFloat);
}

double eviction_limit(double logit_bound, double log_tolerance, double c_now) {
  return log_tolerance - 2 * logit_bound - c_now;
}

}  // namespace reynard::attention
