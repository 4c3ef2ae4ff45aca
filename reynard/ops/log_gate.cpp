#include "reynard/ops/log_gate.h"

#include "reynard/ops/few_row_products.h"
#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/row_tensor.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/log_sigmoid.h>

#include <algorithm>
#include <cmath>

namespace reynard::ops {

at::Tensor log_gate(const at::Tensor& logits, const at::Tensor& bias) {
  tensor::check_shape("log_gate", "logits", logits, {{"N"}, {"H"}});
  tensor::check_shape("log_gate", "bias", bias, {{"H", logits.size(1)}});
  tensor::check_device("log_gate", "bias", bias, "logits", logits.device());
  // Of weights that are only read (trained ones have the same bits with a graph and without), and
  // on a CPU of so few rows that two of the library's operators would take as long as a product.
  const auto is_read_only = [](const at::Tensor& t) {
    return t.scalar_type() == at::kFloat && !t.requires_grad();
  };
  const bool is_own = logits.is_cpu() ? logits.size(0) <= kFewRows : has_row_kernels(logits);
  if (!is_own || !is_read_only(logits) || !is_read_only(bias)) {
    return at::log_sigmoid(logits + bias);
  }
  const at::Tensor from = logits.contiguous(), biases = bias.contiguous();
  at::Tensor result = tensor::empty_rows(from.sizes(), from.options());
  const int64_t H = logits.size(1);
  if (!logits.is_cpu()) {
    const LogGateRows task = {.logits = from.const_data_ptr<float>(),
                              .bias = biases.const_data_ptr<float>(),
                              .heads = H,
                              .y = result.mutable_data_ptr<float>()};
    const RowKernels& kernels = row_kernels(from);
    for_rows(from, from.size(0), H, [&](int64_t begin, int64_t end) {
      kernels.log_gate(task, begin, end);
    });
    return result;
  }
  const auto* x = from.const_data_ptr<float>();
  const auto* b = biases.const_data_ptr<float>();
  auto* y = result.mutable_data_ptr<float>();
  for (int64_t i = 0; i < from.numel(); ++i) {
    const float sum = x[i] + b[i % H];
    y[i] = std::min(sum, 0.0F) - std::log1p(std::exp(-std::abs(sum)));
  }
  return result;
}

}  // namespace reynard::ops
