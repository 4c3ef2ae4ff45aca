#include "reynard/ops/cross_entropy.h"

#include "reynard/ops/linear.h"
#include "reynard/ops/precision.h"
#include "reynard/ops/product.h"
#include "reynard/ops/rows.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace reynard::ops {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_head(std::string_view op,
                const at::Tensor& hidden,
                const at::Tensor& head,
                const at::Tensor& head_compute,
                const at::Tensor& targets,
                int64_t chunk_tokens) {
  tensor::check_shape(op, "head", head, {{"V"}, {"C"}});
  tensor::check_shape(op, "hidden", hidden, {{"N"}, {"C", head.size(1)}});
  if (head_compute.defined()) {
    tensor::check_shape(
        op, "head_compute", head_compute, {{"V", head.size(0)}, {"C", head.size(1)}});
  }
  tensor::check_shape(op, "targets", targets, {{"N", hidden.size(0)}});
  tensor::check_dtype(op, "targets", targets, {at::kLong});
  tensor::check_value(chunk_tokens > 0, op, "chunk_tokens", chunk_tokens, "> 0");
  if (targets.numel() == 0) return;
  const int64_t low = targets.min().item<int64_t>();
  const int64_t high = targets.max().item<int64_t>();
  const std::string range = "token ids in [0, V = " + std::to_string(head.size(0)) + ")";
  tensor::check_value(low >= 0, op, "smallest target", low, range);
  tensor::check_value(high < head.size(0), op, "largest target", high, range);
}

// Losses (N) of the first V columns of `logits`, which become their own gradient times `weight`
// when asked.
at::Tensor softmax_loss(at::Tensor& logits,
                        int64_t V,
                        const at::Tensor& target,
                        const at::Tensor& weight,
                        bool gradient) {
  if (has_row_kernels(logits)) {
    const at::Tensor loss = at::empty(target.sizes(), logits.options().dtype(at::kFloat));
    const SoftmaxLossRows task{.logits = logits.data_ptr(),
                               .targets = target.const_data_ptr<int64_t>(),
                               .weights = weight.const_data_ptr<float>(),
                               .vocabulary = V,
                               .stride = logits.stride(0),
                               .gradient = gradient,
                               .loss = loss.data_ptr<float>()};
    const RowKernels& kernels = row_kernels(logits);
    for_rows(logits, logits.size(0), logits.size(1), [&](int64_t begin, int64_t end) {
      kernels.softmax_loss(task, begin, end);
    });
    return loss;
  }
  const at::ScalarType dtype = arithmetic_dtype(logits);
  const at::Tensor exact = logits.to(dtype);
  const at::Tensor index = target.unsqueeze(1);
  const at::Tensor lse = at::logsumexp(exact, {1}, /*keepdim=*/true);
  const at::Tensor loss = (lse - exact.gather(1, index)).squeeze(1);
  if (gradient) {
    at::Tensor d_logits = at::exp(exact - lse);
    d_logits.scatter_add_(1, index, at::full_like(lse, -1));
    logits = (d_logits * weight.to(dtype).unsqueeze(1)).to(logits.scalar_type());
  }
  return loss;
}

// The head with rows of zeros up to a multiple of 16 bytes' worth on a GPU, where the products of
// an odd vocabulary take four times as long; their logits and gradients are 0 and are not read.
at::Tensor padded(const at::Tensor& matrix) {
  constexpr int64_t kAlignment = 16;
  const int64_t V = matrix.size(0), step = kAlignment / matrix.element_size();
  if (!matrix.is_cuda() || !has_row_kernels(matrix) || V % step == 0) return matrix;
  at::Tensor rows = at::zeros({(V + step - 1) / step * step, matrix.size(1)}, matrix.options());
  rows.narrow(0, 0, V).copy_(matrix);
  return rows;
}

at::Tensor beside(const at::Tensor& hidden, const at::Tensor& t) {
  return t.to(hidden.device(), /*non_blocking=*/true).contiguous();
}

// Gradients are formed with the loss, chunk by chunk, so that logits need not be kept; the backward
// pass scales them where they lie and gives them away. They are as large as the head: so it runs
// once.
struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& hidden,
                            const at::Tensor& head,
                            const at::Tensor& matrix,
                            const at::Tensor& targets,
                            const at::Tensor& mask,
                            int64_t chunk_tokens) {
    const at::ScalarType dtype = arithmetic_dtype(matrix);
    const bool hidden_grad = hidden.requires_grad();
    const bool head_grad = head.requires_grad();
    at::Tensor d_hidden, d_head;
    if (hidden_grad) d_hidden = at::empty(hidden.sizes(), hidden.options());
    const at::Tensor rows = padded(matrix);
    at::Tensor total = at::zeros({}, hidden.options().dtype(at::kDouble));
    for (int64_t begin = 0; begin < hidden.size(0); begin += chunk_tokens) {
      const int64_t count = std::min(chunk_tokens, hidden.size(0) - begin);
      const at::Tensor part = hidden.narrow(0, begin, count).to(matrix.scalar_type());
      const at::Tensor target = targets.narrow(0, begin, count);
      const at::Tensor weight = mask.narrow(0, begin, count);
      at::Tensor logits = product(part, rows.t());
      const at::Tensor loss =
          softmax_loss(logits, head.size(0), target, weight, hidden_grad || head_grad);
      total += (loss * weight).sum(at::kDouble);
      if (hidden_grad) d_hidden.narrow(0, begin, count).copy_(product(logits, rows));
      if (!head_grad) continue;
      if (d_head.defined()) {
        add_product(d_head, logits.t(), part);
      } else {
        d_head = product(logits.t(), part, head.scalar_type());
      }
    }
    if (head_grad && !d_head.defined()) d_head = at::zeros(rows.sizes(), head.options());
    if (head_grad) d_head = d_head.narrow(0, 0, head.size(0));
    if (hidden_grad) context->saved_data["d_hidden"] = d_hidden;
    if (head_grad) context->saved_data["d_head"] = d_head;
    return total.to(dtype);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_derivative("cross_entropy");
    tensor::check_value(!context->saved_data.empty(),
                        "cross_entropy",
                        "backward pass",
                        "a second one",
                        "one: it gives its gradients away");
    const auto taken = [&](const char* name) {
      const auto found = context->saved_data.find(name);
      if (found == context->saved_data.end()) return at::Tensor();
      at::Tensor gradient = std::move(found->second).toTensor();
      context->saved_data.erase(found);
      return gradient.mul_(grads[0]);
    };
    return {taken("d_hidden"), taken("d_head"), {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor cross_entropy(const at::Tensor& hidden,
                         const at::Tensor& head,
                         const at::Tensor& head_compute,
                         const at::Tensor& targets,
                         const at::Tensor& mask,
                         int64_t chunk_tokens) {
  check_head("cross_entropy", hidden, head, head_compute, targets, chunk_tokens);
  if (mask.defined()) tensor::check_shape("cross_entropy", "mask", mask, {{"N", hidden.size(0)}});
  const at::Tensor matrix = (head_compute.defined() ? head_compute : head).detach();
  const at::Tensor weights =
      mask.defined() ? mask : at::ones_like(targets, hidden.options().dtype(at::kFloat));
  // A function's forward cannot ask: it always runs without gradients.
  const auto if_wanted = [](const at::Tensor& t) {
    return at::GradMode::is_enabled() ? t : t.detach();
  };
  return CrossEntropy::apply(if_wanted(hidden),
                             if_wanted(head),
                             matrix,
                             beside(hidden, targets),
                             beside(hidden, weights.to(at::kFloat)),
                             chunk_tokens);
}

TokenScores score_tokens(const at::Tensor& hidden,
                         const at::Tensor& head,
                         const at::Tensor& head_compute,
                         const at::Tensor& targets,
                         int64_t chunk_tokens,
                         const at::Tensor& head_scales) {
  check_head("score_tokens", hidden, head, head_compute, targets, chunk_tokens);
  const at::NoGradGuard no_grad;
  const Weight weight{.value = head, .compute = head_compute, .scales = head_scales};
  const at::Tensor wanted = beside(hidden, targets);
  TokenScores scores{
      .logprob = at::empty(wanted.sizes(), wanted.options().dtype(arithmetic_dtype(hidden))),
      .greedy = at::empty(wanted.sizes(), wanted.options())};
  for (int64_t begin = 0; begin < hidden.size(0); begin += chunk_tokens) {
    const int64_t count = std::min(chunk_tokens, hidden.size(0) - begin);
    const at::Tensor logits = ops::logits(hidden.narrow(0, begin, count), weight);
    const at::Tensor target = wanted.narrow(0, begin, count).unsqueeze(1);
    scores.logprob.narrow(0, begin, count)
        .copy_((logits.gather(1, target).squeeze(1) - at::logsumexp(logits, {1})));
    scores.greedy.narrow(0, begin, count).copy_(at::argmax(logits, 1));
  }
  return scores;
}

}  // namespace reynard::ops
