#include "reynard/ops/int8_linear.h"

#include "reynard/ops/few_row_products.h"
#include "reynard/ops/product.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/round.h>

#include <algorithm>

namespace reynard::ops {

namespace {

constexpr double kLargest = 127;  // not -128: the range is symmetric
// Rows of a weight that are quantised or widened at a time: a few MB at any width.
constexpr int64_t kWideRows = 512;

// For many rows of x, which pay for widening the weight: int8 values are bf16 values too, and bf16
// products have matrix units. The scale comes after the product, in f32.
at::Tensor widened_product(const at::Tensor& x, const Int8Weight& weight, at::ScalarType out) {
  const int64_t O = weight.values.size(0);
  at::Tensor y = at::empty({x.size(0), O}, at::kFloat);
  for (int64_t row = 0; row < O; row += kWideRows) {
    const int64_t count = std::min(kWideRows, O - row);
    const at::Tensor wide = weight.values.narrow(0, row, count).to(x.scalar_type());
    y.narrow(1, row, count)
        .copy_(out == at::kFloat ? unrounded_product(x, wide.t())
                                 : library_product(x, wide.t(), x.scalar_type()));
  }
  return y.mul_(weight.scales).to(out);
}

}  // namespace

Int8Weight quantize_rows(const at::Tensor& weight) {
  tensor::check_shape("quantize_rows", "weight", weight, {{"O"}, {"I"}});
  const at::NoGradGuard no_grad;
  const int64_t O = weight.size(0);
  Int8Weight result{.values = at::empty(weight.sizes(), at::kChar),
                    .scales = at::empty({O}, at::kFloat)};
  if (weight.numel() == 0) return result;
  for (int64_t row = 0; row < O; row += kWideRows) {
    const int64_t count = std::min(kWideRows, O - row);
    const at::Tensor rows = weight.narrow(0, row, count).to(at::kFloat);
    const at::Tensor scale = rows.abs().amax({1}) / kLargest;
    // A row of zeros: 0 / 1.
    const at::Tensor divisor = scale.masked_fill(scale == 0, 1).unsqueeze(1);
    result.values.narrow(0, row, count)
        .copy_(at::clamp(at::round(rows / divisor), -kLargest, kLargest));
    result.scales.narrow(0, row, count).copy_(scale);
  }
  return result;
}

at::Tensor int8_linear(const at::Tensor& x, const Int8Weight& weight, at::ScalarType out) {
  tensor::check_shape("int8_linear", "weight", weight.values, {{"O"}, {"I"}});
  tensor::check_dtype("int8_linear", "weight", weight.values, {at::kChar});
  tensor::check_shape("int8_linear", "scales", weight.scales, {{"O", weight.values.size(0)}});
  tensor::check_shape("int8_linear", "x", x, {{"N"}, {"I", weight.values.size(1)}});
  TORCH_INTERNAL_ASSERT(out == at::kFloat || out == at::kBFloat16);
  const at::NoGradGuard no_grad;
  const at::Tensor input = x.to(at::kBFloat16).contiguous();
  const RowWeight rows{
      .values = weight.values, .scales = weight.scales, .rounds = out == at::kBFloat16};
  return has_few_row_product(input, rows) ? few_row_products(input, {&rows, 1})[0]
                                          : widened_product(input, weight, out);
}

}  // namespace reynard::ops
