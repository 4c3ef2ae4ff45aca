#pragma once
// One new token for each of S sequences, as mixers see it: caches are read by tables that lie on
// the device, so that the calls can be recorded (models/stepper.h).

#include "reynard/attention/step_tables.h"
#include "reynard/models/state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace reynard::models {

struct Step {
  // What mixers read.
  attention::StepTables tables;
  at::Tensor tokens;     // (S) i64
  at::Tensor positions;  // (S) i64
  at::Tensor offsets;    // (S) i64: 0, 1 ...
  at::Tensor carries;    // (L, 2, S, G D): raw keys and values of the tokens before, or undefined

  // What they leave, by layer.
  std::vector<Carry> new_carries;        // (S, G D): raw keys and values of the step's tokens
  std::vector<at::Tensor> logit_bounds;  // (H), or undefined: a recording reads it where it is

  explicit Step(attention::StepTables of)
      : tables(std::move(of)),
        new_carries(tables.shape().num_layers),
        logit_bounds(tables.shape().num_layers) {}
  // (S, G D) of `carries`; undefined without.
  Carry carry(int64_t layer) const;
};

}  // namespace reynard::models
