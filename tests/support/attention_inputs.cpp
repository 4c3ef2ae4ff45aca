#include "tests/support/attention_inputs.h"

#include "reynard/attention/bias.h"
#include "reynard/attention/reference.h"
#include "tests/support/compare.h"
#include "tests/support/device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

namespace reynard::test {

namespace {

at::Tensor detached(const at::Tensor& t, bool requires_grad) {
  return t.defined() ? t.detach().requires_grad_(requires_grad) : t;
}

AttentionInputs leaves(const AttentionInputs& inputs) {
  AttentionInputs leaf = inputs;
  leaf.q = detached(inputs.q, true);
  leaf.k = detached(inputs.k, true);
  leaf.v = detached(inputs.v, true);
  leaf.log_gate = detached(inputs.log_gate, true);
  return leaf;
}

AttentionGradients gradients(const AttentionInputs& leaf,
                             const at::Tensor& out,
                             const at::Tensor& lse) {
  const at::Tensor dlse = leaf.dlse.masked_fill(lse.detach().isinf(), 0);
  torch::autograd::backward({out, lse}, {leaf.dout, dlse});
  return {out.detach(),
          lse.detach(),
          leaf.q.grad(),
          leaf.k.grad(),
          leaf.v.grad(),
          leaf.log_gate.defined() ? leaf.log_gate.grad() : at::Tensor()};
}

// The formulas of the backward as one would write them in the dtype of the inputs: the rounded out
// gives delta, as only it is saved.
AttentionGradients naive_gradients(const AttentionInputs& inputs,
                                   const at::Tensor& query_sums,
                                   const attention::KeyPart& part,
                                   const attention::ReferenceOutput& output,
                                   double scale,
                                   const at::Tensor& start) {
  const at::NoGradGuard no_grad;
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(inputs.q.size(3)));
  const at::Tensor products = inputs.dout.to(at::kFloat) * output.out.to(at::kFloat);
  const at::Tensor dlse = inputs.dlse.masked_fill(output.lse.isinf(), 0);
  const at::Tensor delta = products.sum(-1).transpose(1, 2) - dlse;
  const attention::ReferenceGradients rows = attention::reference_backward_part(
      {inputs.q, query_sums, part, start, scale}, inputs.dout, output.lse, delta);
  const at::ScalarType dtype = inputs.q.scalar_type();
  AttentionGradients result = {output.out.detach(),
                               output.lse.detach(),
                               rows.dq.to(dtype),
                               rows.dk.to(dtype),
                               rows.dv.to(dtype),
                               {}};
  if (query_sums.defined()) {
    at::Tensor dsums = rows.dsums.clone();
    dsums.slice(2, part.k.size(1) - inputs.q.size(1)).add_(rows.dquery_sums);
    result.dlog_gate = dsums.flip({2}).cumsum(2).flip({2}).transpose(1, 2).to(at::kFloat);
  }
  return result;
}

}  // namespace

AttentionInputs random_inputs(const AttentionShape& shape,
                              at::ScalarType dtype,
                              uint64_t seed,
                              double gate_mean) {
  const auto [B, Tq, Tk, H, G, D] = shape;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto normal = [&](at::IntArrayRef sizes) {
    return on_test_device(at::randn(sizes, generator, at::kDouble));
  };
  const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  AttentionInputs inputs;
  inputs.q = normal({B, Tq, H, D}).to(dtype);
  inputs.k = normal({B, Tk, G, D}).to(dtype);
  inputs.v = normal({B, Tk, G, D}).to(dtype);
  inputs.log_gate = at::log_sigmoid(normal({B, Tk, H}) + gate_mean).to(wide);
  inputs.dout = normal({B, Tq, H, D}).to(dtype);
  inputs.dlse = normal({B, H, Tq}).to(wide);
  return inputs;
}

AttentionInputs in_double(const AttentionInputs& inputs) {
  AttentionInputs exact = inputs;
  for (at::Tensor* t : {&exact.q, &exact.k, &exact.v, &exact.log_gate, &exact.dout, &exact.dlse}) {
    if (t->defined()) *t = t->to(at::kDouble);
  }
  return exact;
}

at::Tensor first_keys(const AttentionShape& shape, const Visibility& visibility) {
  at::Tensor first = at::empty({shape.B, shape.Tq}, at::kInt);
  auto* values = first.mutable_data_ptr<int32_t>();
  for (int64_t b = 0; b < shape.B; ++b) {
    for (int64_t t = 0; t < shape.Tq; ++t) {
      const int64_t position = t + shape.Tk - shape.Tq;
      int64_t key = visibility.padding.empty() ? 0 : visibility.padding[b];
      for (const int64_t document : visibility.documents) {
        if (document <= position) key = std::max(key, document);
      }
      if (visibility.window > 0) key = std::max(key, position - visibility.window + 1);
      values[b * shape.Tq + t] = static_cast<int32_t>(key);
    }
  }
  return on_test_device(first);
}

AttentionGradients run_attention(const AttentionInputs& inputs,
                                 const attention::AttentionOptions& options,
                                 const at::Tensor& logit_bound) {
  const AttentionInputs leaf = leaves(inputs);
  const attention::AttentionOutput output = attention::attention(
      leaf.q, leaf.k, leaf.v, leaf.log_gate, leaf.first_key, logit_bound, options);
  return gradients(leaf, output.out, output.lse);
}

AttentionGradients run_reference(const AttentionInputs& inputs,
                                 double scale,
                                 const at::Tensor& start) {
  const bool exact = inputs.q.scalar_type() == at::kDouble;
  const AttentionInputs leaf = leaves(inputs);
  attention::KeyPart part = {leaf.k, leaf.v, {}, leaf.first_key, true};
  at::Tensor query_sums;
  if (leaf.log_gate.defined()) {
    part.sums = attention::gate_sums(leaf.log_gate);
    query_sums = part.sums.slice(2, leaf.k.size(1) - leaf.q.size(1));
  }
  const attention::ReferenceOutput output =
      attention::reference_attention(leaf.q, query_sums, {&part, 1}, scale, {&start, 1});
  return exact ? gradients(leaf, output.out, output.lse)
               : naive_gradients(leaf, query_sums, part, output, scale, start);
}

void expect_within_budget(const AttentionInputs& inputs,
                          const attention::AttentionOptions& options,
                          const at::Tensor& start) {
  const AttentionGradients kernel = run_attention(inputs, options);
  const AttentionGradients naive = run_reference(inputs, options.scale, start);
  const AttentionGradients exact = run_reference(in_double(inputs), options.scale, start);
  EXPECT_WITHIN_BUDGET(kernel.out, naive.out, exact.out);
  EXPECT_WITHIN_BUDGET(kernel.lse, naive.lse, exact.lse);
  EXPECT_WITHIN_BUDGET(kernel.dq, naive.dq, exact.dq);
  EXPECT_WITHIN_BUDGET(kernel.dk, naive.dk, exact.dk);
  EXPECT_WITHIN_BUDGET(kernel.dv, naive.dv, exact.dv);
  if (inputs.log_gate.defined()) {
    EXPECT_WITHIN_BUDGET(kernel.dlog_gate, naive.dlog_gate, exact.dlog_gate);
  }
}

double longest_row(const at::Tensor& rows) {
  return rows.numel() ? rows.to(at::kDouble).square().sum(-1).sqrt().max().item<double>() : 0;
}

double logit_rounding(const at::Tensor& q,
                      const at::Tensor& k,
                      const at::Tensor& lse,
                      double scale) {
  if (scale == 0) scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const double largest =
      lse.numel() ? lse.masked_fill(lse.isinf(), 0).abs().max().item<double>() : 0;
  return 0x1p-23 * (scale * longest_row(q) * longest_row(k) + largest);
}

void expect_same_bits(const AttentionGradients& actual, const AttentionGradients& expected) {
  EXPECT_BITWISE_EQUAL(actual.out, expected.out);
  EXPECT_BITWISE_EQUAL(actual.lse, expected.lse);
  EXPECT_BITWISE_EQUAL(actual.dq, expected.dq);
  EXPECT_BITWISE_EQUAL(actual.dk, expected.dk);
  EXPECT_BITWISE_EQUAL(actual.dv, expected.dv);
  if (actual.dlog_gate.defined() && expected.dlog_gate.defined()) {
    EXPECT_BITWISE_EQUAL(actual.dlog_gate, expected.dlog_gate);
  }
}

}  // namespace reynard::test
