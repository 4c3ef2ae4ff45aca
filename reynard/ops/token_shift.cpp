#include "reynard/ops/token_shift.h"

#include "reynard/ops/precision.h"
#include "reynard/ops/rows.h"
#include "reynard/ops/token_shift_rows.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <utility>

namespace reynard::ops {

namespace {

void check_rows(const at::Tensor& x, const at::Tensor& shift_logit) {
  if (x.dim() == 2) {
    tensor::check_shape("token_shift", "x", x, {{"N"}, {"G D"}});
    tensor::check_shape("token_shift", "shift_logit", shift_logit, {{"N", x.size(0)}, {"G"}});
    const int64_t G = shift_logit.size(1);
    tensor::check_value(
        G > 0 && x.size(1) % G == 0, "token_shift", "G of shift_logit", G, "a divisor of G D of x");
  } else {
    tensor::check_shape("token_shift", "x", x, {{"N"}, {"G"}, {"D"}});
    tensor::check_shape(
        "token_shift", "shift_logit", shift_logit, {{"N", x.size(0)}, {"G", x.size(1)}});
  }
}

void check_previous(const at::Tensor& previous, int64_t num_sequences, const at::Tensor& x) {
  const tensor::Dim S = {"S", num_sequences};
  if (x.dim() == 2) {
    tensor::check_shape("token_shift", "previous", previous, {S, {"G D", x.size(1)}});
  } else {
    tensor::check_shape(
        "token_shift", "previous", previous, {S, {"G", x.size(1)}, {"D", x.size(2)}});
  }
}

void check_starts(const at::Tensor& starts, int64_t num_tokens) {
  tensor::check_dtype("token_shift", "starts", starts, {at::kLong});
  tensor::check_value(starts.size(0) > 0 || num_tokens == 0,
                      "token_shift",
                      "length of starts",
                      starts.size(0),
                      "at least 1 where there are tokens");
  if (!starts.is_cpu()) return;
  const at::Tensor contiguous = starts.contiguous();
  const int64_t* start = contiguous.const_data_ptr<int64_t>();
  for (int64_t s = 0; s < starts.size(0); ++s) {
    const bool ascending = s == 0 ? start[0] == 0 : start[s] > start[s - 1];
    tensor::check_value(ascending && start[s] < num_tokens,
                        "token_shift",
                        "starts[" + std::to_string(s) + "]",
                        start[s],
                        "ascending indices of tokens, the first of them 0");
  }
}

}  // namespace

at::Tensor token_shift(const at::Tensor& x,
                       const at::Tensor& shift_logit,
                       const at::Tensor& starts,
                       const at::Tensor& previous) {
  check_rows(x, shift_logit);
  tensor::check_shape("token_shift", "starts", starts, {{"S"}});
  if (previous.defined()) check_previous(previous, starts.size(0), x);
  for (const auto& [arg, t] : {std::pair("shift_logit", &shift_logit),
                               std::pair("starts", &starts),
                               std::pair("previous", &previous)}) {
    tensor::check_device("token_shift", arg, *t, "x", x.device());
  }
  check_starts(starts, x.size(0));
  if (x.numel() == 0) return x;
  if (has_row_kernels(x)) return rows::token_shift(x, shift_logit, starts, previous);
  const at::ScalarType dtype = arithmetic_dtype(x);
  const int64_t G = shift_logit.size(1), D = x.numel() / shift_logit.numel();
  const at::Tensor current = x.to(dtype).reshape({-1, G, D});
  const at::Tensor before_first = previous.defined()
                                      ? previous.to(dtype).reshape({-1, G, D})
                                      : at::zeros({starts.size(0), G, D}, current.options());
  const at::Tensor shifted =
      at::cat({current.narrow(0, 0, 1), current.narrow(0, 0, x.size(0) - 1)}, 0)
          .index_copy(0, starts, before_first);
  const at::Tensor a = at::sigmoid(shift_logit.to(dtype)).unsqueeze(-1);
  return (a * shifted + (1 - a) * current).to(x.scalar_type()).reshape(x.sizes());
}

}  // namespace reynard::ops
