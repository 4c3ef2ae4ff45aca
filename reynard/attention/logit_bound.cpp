// The bounds of pruning.h that come from QK-norm weights.

#include "reynard/attention/pruning.h"
#include "reynard/attention/scale.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/row_tensor.h"

#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

namespace reynard::attention {

namespace {

// The largest product of max(|wq_d|, |wq_(d + pair)|) and the same of wk over d < count. NaN where
// any of these is: a bound must not hide it. In lanes, which compilers make vectors of.
double largest_product(const float* wq, const float* wk, int64_t count, int64_t pair) {
  constexpr int64_t kLanes = 4;
  double largest[kLanes] = {};
  double total[kLanes] = {};  // of numbers >= 0: NaN if one of them is
  const auto add = [&](int64_t d, int64_t lane) {
    const float q0 = std::abs(wq[d]), q1 = std::abs(wq[d + pair]);
    const float k0 = std::abs(wk[d]), k1 = std::abs(wk[d + pair]);
    const double product = static_cast<double>(q0 > q1 ? q0 : q1) * (k0 > k1 ? k0 : k1);
    largest[lane] = product > largest[lane] ? product : largest[lane];
    total[lane] += product + static_cast<double>(q0 + q1) + static_cast<double>(k0 + k1);
  };
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) add(d + lane, lane);
  }
  for (; d < count; ++d) add(d, d % kLanes);
  const double sum = std::accumulate(total, total + kLanes, 0.0);
  return std::isnan(sum) ? sum : *std::max_element(largest, largest + kLanes);
}

void check_weight(std::string_view arg, const at::Tensor& weight, int64_t num_heads) {
  const bool fits = weight.dim() == 1 ||
                    (weight.dim() == 2 && weight.size(0) >= 1 && num_heads % weight.size(0) == 0);
  tensor::check_value(fits,
                      "qk_norm_bound",
                      arg,
                      fmt::format("a tensor of shape [{}]", fmt::join(weight.sizes(), ", ")),
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
  auto* of_head = bounds.mutable_data_ptr<float>();
  for (int64_t h = 0; h < num_heads; ++h) {
    const double most =
        largest_product(row(q_weight, h), row(k_weight, h), rotary ? half : D, rotary ? half : 0);
    of_head[h] = static_cast<float>(most * factor);
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
  tensor::check_value(!rotary || D % 2 == 0,
                      "qk_norm_bound",
                      "head dimension D",
                      D,
                      "an even number, since pairs rotate");
  const double factor =
      effective_scale(scale, D) * static_cast<double>(D) * rounding_of(dtype, rotary);
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
  const double error = effective_scale(scale, D) * std::pow(static_cast<double>(D), 1.5) *
                       half_step * rounding_of(dtype, rotary);
  // What several queries attend to is rounded to dtype once more.
  return ((bound.to(at::kDouble) + (q * k).to(at::kDouble) * error) * (1 + unit_of(dtype)))
      .to(at::kFloat);
}

double eviction_limit(double logit_bound, double log_tolerance, double c_now) {
  return log_tolerance - 2 * logit_bound - c_now;
}

}  // namespace reynard::attention
