#include "reynard/ops/int8_linear.h"

#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/round.h>

#include <algorithm>

namespace reynard::ops {

namespace {

constexpr double kLargest = 127;  // not -128: the range is symmetric
// Rows of a weight that are quantised or widened at a time: a few MB at any width.
constexpr int64_t kWideRows = 512;
// Up to this many tokens the int8 values are multiplied as they are; more tokens pay for widening
// the weight to bf16, whose products have matrix units.
constexpr int64_t kDirectTokens = 16;

// Sums over int8 values as they are, their rows split between threads.
at::Tensor direct_product(const at::Tensor& x, const Int8Weight& weight) {
  const int64_t O = weight.values.size(0), I = weight.values.size(1);
  at::Tensor y = at::empty({x.size(0), O}, at::kFloat);
  const Int8Rows task{.x = x.const_data_ptr(),
                      .values = weight.values.const_data_ptr<int8_t>(),
                      .scales = weight.scales.const_data_ptr<float>(),
                      .tokens = x.size(0),
                      .rows = O,
                      .width = I,
                      .y = y.data_ptr<float>()};
  const RowKernels& kernels = row_kernels(x);
  for_rows(x, O, x.size(0) * I, [&](int64_t begin, int64_t end) {
    kernels.int8_product(task, begin, end);
  });
  return y;
}

// int8 values are bf16 values too: the scale comes after the product, in f32.
at::Tensor widened_product(const at::Tensor& x, const Int8Weight& weight) {
  const int64_t O = weight.values.size(0);
  at::Tensor y = at::empty({x.size(0), O}, at::kFloat);
  for (int64_t row = 0; row < O; row += kWideRows) {
    const int64_t count = std::min(kWideRows, O - row);
    const at::Tensor wide = weight.values.narrow(0, row, count).to(x.scalar_type());
    y.narrow(1, row, count).copy_(at::mm(x, wide.t()));
  }
  return y.mul_(weight.scales);
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

at::Tensor dequantized(const Int8Weight& weight) {
  return weight.values.to(at::kFloat) * weight.scales.unsqueeze(1);
}

at::Tensor int8_linear(const at::Tensor& x, const Int8Weight& weight, const at::Tensor& bias) {
  tensor::check_shape("int8_linear", "weight", weight.values, {{"O"}, {"I"}});
  tensor::check_dtype("int8_linear", "weight", weight.values, {at::kChar});
  tensor::check_shape("int8_linear", "scales", weight.scales, {{"O", weight.values.size(0)}});
  tensor::check_shape("int8_linear", "x", x, {{"N"}, {"I", weight.values.size(1)}});
  const at::NoGradGuard no_grad;
  const at::Tensor input = x.to(at::kBFloat16).contiguous();
  const bool few = x.size(0) <= kDirectTokens;
  at::Tensor y = few ? direct_product(input, weight) : widened_product(input, weight);
  if (bias.defined()) y = y + bias;
  return y.to(at::kBFloat16);
}

}  // namespace reynard::ops
