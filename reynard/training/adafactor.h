#pragma once
// One step of Adafactor (Shazeer and Stern 2018) of one tensor: second moments of a matrix as the
// product of those of its rows and columns, updates clipped to a root mean square of 1 and scaled
// by that of the weights, with momentum, as the Focused Transformer's small models were trained.

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace reynard::training {

// f32, beside the weights. Matrices whose sides are at least 128 have rows and columns, others
// exp_avg_sq.
struct AdafactorMoments {
  at::Tensor exp_avg;        // as the weights
  at::Tensor exp_avg_sq;     // as the weights, or undefined
  at::Tensor rows, columns;  // (R) and (C), or undefined

  // Those that are defined, by name.
  std::vector<std::pair<std::string, at::Tensor>> named() const;
};
AdafactorMoments adafactor_moments(const at::Tensor& value);

struct AdafactorStep {
  double learning_rate = 0;
  double beta1 = 0.9;
  double decay = 0.8;  // the second moments' is 1 - step^-decay
  double weight_decay = 0;
  int64_t step = 1;  // this one: 1 at first
};
// gradient_scale: an f32 scalar that no one waits for: where it is not finite nothing changes.
void adafactor(const at::Tensor& value,
               AdafactorMoments& moments,
               const at::Tensor& gradient,
               const at::Tensor& gradient_scale,
               const AdafactorStep& step);

}  // namespace reynard::training
