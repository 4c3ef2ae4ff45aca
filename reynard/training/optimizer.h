#pragma once
// AdamW or Adafactor over a model's parameters with the published parameter groups, global-norm
// clipping, and the refresh of bf16 compute copies. Moments are f32.

#include "reynard/checkpoint/safetensors.h"
#include "reynard/models/decoder.h"
#include "reynard/training/adafactor.h"
#include "reynard/training/experiment.h"

#include <span>
#include <string>
#include <vector>

namespace reynard::training {

class Optimizer {
 public:
  // Takes every parameter that is not frozen; two groups: those with `decay` and those without.
  Optimizer(const OptimizerConfig& config, models::Decoder& model);

  // Global L2 norm of the gradients that are there (parameters without a gradient count 0): an f64
  // scalar on the model's device.
  at::Tensor grad_norm() const;
  // One step on the gradients scaled to clip_norm, which also refreshes the model's compute
  // copies; then clears the gradients. Nothing on a GPU is waited for: where grad_norm, which
  // grad_norm() returned, or the loss (f64 scalars) is not finite the kernels change nothing, and
  // the caller, who learns of it later, calls take_back_step().
  void step(double learning_rate, const at::Tensor& grad_norm, const at::Tensor& loss);
  // The last step() changed nothing: it does not count.
  void take_back_step();
  // In place of a step().
  void clear_gradients();

  // Moments and step counts by name: "exp_avg.NAME", "exp_avg_sq.NAME", "step.NAME" (f32 scalar),
  // and with Adafactor those of AdafactorMoments. The tensors are the optimizer's own.
  std::vector<checkpoint::NamedTensor> state() const;
  // Copies values into the moments; throws Error unless names, shapes and dtypes are those of
  // state().
  void restore(std::span<const checkpoint::NamedTensor> saved);

 private:
  struct Group {
    double weight_decay = 0;
    std::vector<std::string> names;
    std::vector<models::Parameter*> parameters;
    std::vector<at::Tensor> exp_avg, exp_avg_sq;  // with AdamW
    std::vector<AdafactorMoments> factored;       // with Adafactor
    std::vector<at::Tensor> steps;                // f32 scalars in host memory
    std::vector<bool> moved;                      // by the last step: it had a gradient
  };
  OptimizerConfig config_;
  std::vector<Group> groups_;
};

}  // namespace reynard::training
