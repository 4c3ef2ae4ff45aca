#pragma once
// Matrix products with f32 master weights and, for mixed precision, their bf16 compute copies, or
// with int8 weights. Few rows without a graph (decoding) go to few_row_products.h.

#include "reynard/ops/gated_act.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace reynard::ops {

// A weight W (O, I) in f32 (f64: the reference). Where `compute` (O, I) is defined, products run
// in its dtype and the gradient reaches `value`; where it is not, in that of `value`. With scales
// `value` is int8 (int8_linear.h), products are bf16 and there are no gradients.
struct Weight {
  at::Tensor value, compute = {};
  at::Tensor scales = {};  // (O) f32
};

// y_w = x W_w^T for weights that share their input. One node: the gradient of x is one sum, to
// which each product adds.
//   x (N, I), W_w (O_w, I)  ->  one (N, O_w) per weight, in the dtype of its product
std::vector<at::Tensor> linears(const at::Tensor& x, std::span<const Weight> weights);

// y = x W^T + b. bias (O) may be undefined; it is added in f32.
//   x (N, I)  ->  (N, O) dtype of the product
at::Tensor linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias = {});

// The head's product: x W^T as its sums are, in f32, where those above round what bf16 and int8
// weights make. No gradients.
//   x (N, C), W (V, C)  ->  (N, V) f32 (f64: the reference)
at::Tensor logits(const at::Tensor& x, const Weight& weight);

// y (N, O) + bias (O), which may be undefined; the sum is formed in the dtype of the bias.
at::Tensor add_bias(const at::Tensor& y, const at::Tensor& bias);

// gated_act(gate_up, act) W^T: the MLP after its first product. The backward pass computes the
// activations again, so that only gate_up is kept.
//   gate_up (N, 2I), W (O, I)  ->  (N, O) dtype of the product
at::Tensor gated_linear(const at::Tensor& gate_up, Activation act, const Weight& weight);

}  // namespace reynard::ops
