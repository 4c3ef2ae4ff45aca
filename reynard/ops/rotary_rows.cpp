#include "reynard/ops/rotary_rows.h"

#include "reynard/ops/rotary.h"
#include "reynard/ops/rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <tuple>

namespace reynard::ops::rows {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Table {
  at::Tensor cosine, sine;  // (positions, D/2) f32
};

Table make_table(const at::Tensor& positions,
                 int64_t half,
                 double base,
                 const RotaryScaling& scaling) {
  const at::Tensor angle = rotary_angles(positions, half, base, scaling);
  const double magnitude = rotary_magnitude(scaling);
  Table table{.cosine = at::cos(angle), .sine = at::sin(angle)};
  if (magnitude != 1) table = {.cosine = table.cosine * magnitude, .sine = table.sine * magnitude};
  return table;
}

// Cosines and sines of positions [0, num_positions or more), made once per base, D and scaling:
// every layer and step reads the same table.
Table rotary_table(int64_t num_positions, int64_t half, double base, const RotaryScaling& scaling) {
  static std::mutex mutex;
  static std::map<std::tuple<double, int64_t, RotaryScaling>, Table> tables;
  const std::lock_guard lock(mutex);
  Table& table = tables[{base, half, scaling}];
  if (!table.cosine.defined() || table.cosine.size(0) < num_positions) {
    const at::NoGradGuard no_grad;
    const auto rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_positions)));
    table = make_table(at::arange(rows, at::kLong), half, base, scaling);
  }
  return table;
}

int64_t largest(const at::Tensor& positions) {
  const at::Tensor contiguous = positions.contiguous();
  const auto* first = contiguous.const_data_ptr<int64_t>();
  return *std::max_element(first, first + contiguous.numel());
}

at::Tensor turned(const at::Tensor& x, const at::Tensor& positions, const Table& table, bool back) {
  const at::Tensor y = at::empty_like(x);
  const RotaryRows task{.x = x.const_data_ptr(),
                        .positions = x.is_cpu() ? positions.const_data_ptr<int64_t>() : nullptr,
                        .cosine = table.cosine.const_data_ptr<float>(),
                        .sine = table.sine.const_data_ptr<float>(),
                        .inverse = back,
                        .heads = x.size(1),
                        .width = x.size(2),
                        .y = y.data_ptr()};
  const RowKernels& kernels = row_kernels(x);
  for_rows(x, x.size(0), x.size(1) * x.size(2), [&](int64_t begin, int64_t end) {
    kernels.rotary(task, begin, end);
  });
  return y;
}

struct Rotary : torch::autograd::Function<Rotary> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& positions,
                            const at::Tensor& cosine,
                            const at::Tensor& sine) {
    context->save_for_backward({positions, cosine, sine});
    return turned(x, positions, {.cosine = cosine, .sine = sine}, /*back=*/false);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    check_first_derivative("rotary");
    const variable_list saved = context->get_saved_variables();
    const Table table{.cosine = saved[1], .sine = saved[2]};
    return {turned(grads[0].contiguous(), saved[0], table, /*back=*/true), {}, {}, {}};
  }
};

}  // namespace

at::Tensor rotary(const at::Tensor& x,
                  const at::Tensor& positions,
                  double base,
                  const RotaryScaling& scaling) {
  if (x.numel() == 0) return x;
  const int64_t half = x.size(2) / 2;
  // On a GPU one row per token: finding the largest position would wait for it.
  const Table table = x.is_cpu() ? rotary_table(largest(positions) + 1, half, base, scaling)
                                 : make_table(positions, half, base, scaling);
  if (!is_recorded({x})) return turned(x.contiguous(), positions.contiguous(), table, false);
  return Rotary::apply(x.contiguous(), positions.contiguous(), table.cosine, table.sine);
}

}  // namespace reynard::ops::rows
