#include "reynard/ops/token_shift_rows.h"

#include "reynard/ops/rows.h"
#include "reynard/tensor/row_tensor.h"

#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <optional>

namespace reynard::ops::rows {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// (N) i64: which sequence starts at each token, or -1.
at::Tensor sequence_of_starts(const at::Tensor& starts, int64_t num_tokens) {
  const at::Tensor contiguous = starts.contiguous();
  if (starts.size(0) == num_tokens) return contiguous;  // one token each: 0, 1, 2, ...
  const at::Tensor sequence = at::empty({num_tokens}, starts.options());
  const int64_t* start = contiguous.const_data_ptr<int64_t>();
  auto* const of_token = sequence.mutable_data_ptr<int64_t>();
  std::fill_n(of_token, num_tokens, -1);
  for (int64_t s = 0; s < starts.size(0); ++s) of_token[start[s]] = s;
  return sequence;
}

// x is (N, G, D) or (N, G D).
int64_t row_width(const at::Tensor& x) {
  return x.dim() == 2 ? x.size(1) : x.size(1) * x.size(2);
}

// starts: sequence_of_starts on the CPU; a GPU searches the starts themselves.
ShiftForward shift_task(const at::Tensor& x,
                        const at::Tensor& logit,
                        const at::Tensor& starts,
                        const at::Tensor& previous) {
  ShiftForward task{.x = x.const_data_ptr(),
                    .logit = logit.const_data_ptr(),
                    .previous = previous.defined() ? previous.const_data_ptr() : nullptr,
                    .heads = logit.size(1),
                    .width = row_width(x) / logit.size(1)};
  if (x.is_cpu()) {
    task.sequence = starts.const_data_ptr<int64_t>();
  } else {
    task.starts = starts.const_data_ptr<int64_t>();
    task.num_starts = starts.size(0);
  }
  return task;
}

at::Tensor lookup_of(const at::Tensor& x, const at::Tensor& starts) {
  return x.is_cpu() ? sequence_of_starts(starts, x.size(0)) : starts.contiguous();
}

at::Tensor shifted(const at::Tensor& x,
                   const at::Tensor& logit,
                   const at::Tensor& lookup,
                   const at::Tensor& previous) {
  const at::Tensor y = tensor::empty_rows(x.sizes(), x.options());
  ShiftForward task = shift_task(x, logit, lookup, previous);
  task.y = y.data_ptr();
  const RowKernels& kernels = row_kernels(x);
  for_rows(x, x.size(0), row_width(x), [&](int64_t begin, int64_t end) {
    kernels.shift_forward(task, begin, end);
  });
  return y;
}

struct Shift : torch::autograd::Function<Shift> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& logit,
                            const at::Tensor& starts,
                            const std::optional<at::Tensor>& optional_previous) {
    const at::Tensor previous = optional_previous.value_or(at::Tensor());
    const at::Tensor lookup = lookup_of(x, starts);
    const at::Tensor y = shifted(x, logit, lookup, previous);
    context->save_for_backward({x, logit, lookup, previous});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_derivative("token_shift");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &logit = saved[1];
    const at::Tensor dy = grads[0].to(x.scalar_type()).contiguous();
    const at::Tensor dx = at::empty_like(x);
    const at::Tensor d_logit = at::empty_like(logit);
    const ShiftBackward task{.forward = shift_task(x, logit, saved[2], saved[3]),
                             .num_tokens = x.size(0),
                             .dy = dy.const_data_ptr(),
                             .dx = dx.data_ptr(),
                             .d_logit = d_logit.data_ptr()};
    const RowKernels& kernels = row_kernels(x);
    for_rows(x, x.size(0), row_width(x), [&](int64_t begin, int64_t end) {
      kernels.shift_backward(task, begin, end);
    });
    return {dx, d_logit, {}, {}};
  }
};

}  // namespace

at::Tensor token_shift(const at::Tensor& x,
                       const at::Tensor& shift_logit,
                       const at::Tensor& starts,
                       const at::Tensor& previous) {
  const at::ScalarType dtype = x.scalar_type();
  const at::Tensor input = x.contiguous(), logit = contiguous_as(dtype, shift_logit);
  const at::Tensor before = contiguous_as(dtype, previous);
  if (!is_recorded({x, shift_logit})) {
    return shifted(input, logit, lookup_of(input, starts), before);
  }
  std::optional<at::Tensor> fixed;  // an undefined tensor cannot be a Function's argument
  if (before.defined()) fixed = before.detach();
  return Shift::apply(input, logit, starts, fixed);
}

}  // namespace reynard::ops::rows
