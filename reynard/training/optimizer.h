#pragma once
// AdamW over a model's parameters with the published parameter groups, global-norm clipping, and
// the refresh of bf16 compute copies. Moments are f32.

#include "reynard/checkpoint/safetensors.h"
#include "reynard/models/decoder.h"
#include "reynard/training/experiment.h"

#include <span>
#include <string>
#include <vector>

namespace reynard::training {

class Optimizer {
 public:
  // Takes every parameter that is not frozen; two groups: those with `decay` and those without.
  Optimizer(const OptimizerConfig& config, models::Decoder& model);

  // Global L2 norm of the gradients that are there (parameters without a gradient count 0).
  double grad_norm() const;
  // One AdamW step on the gradients scaled to clip_norm, then clears the gradients and refreshes
  // the model's compute copies. grad_norm: what grad_norm() returned.
  void step(double learning_rate, double grad_norm);
  void clear_gradients();

  // Moments and step counts by name: "exp_avg.NAME", "exp_avg_sq.NAME", "step.NAME" (f32 scalar).
  // The tensors are the optimizer's own.
  std::vector<checkpoint::NamedTensor> state() const;
  // Copies values into the moments; throws Error unless names, shapes and dtypes are those of
  // state().
  void restore(std::span<const checkpoint::NamedTensor> saved);

 private:
  struct Group {
    double weight_decay = 0;
    std::vector<std::string> names;
    std::vector<at::Tensor> values, exp_avg, exp_avg_sq, steps;
  };
  OptimizerConfig config_;
  models::Decoder* model_;
  std::vector<Group> groups_;
};

}  // namespace reynard::training
