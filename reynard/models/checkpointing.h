#pragma once
// Activation checkpointing: a segment keeps only its inputs and is computed again in the backward
// pass. Parameters inside receive their gradients during that backward, so torch::autograd::grad
// does not see them; backward() does.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace reynard::models {

using Segment = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// segment(inputs), differentiable in its inputs and in every parameter that it reads. At least one
// input must require grad for parameters to be reached.
std::vector<at::Tensor> checkpointed(const Segment& segment, const std::vector<at::Tensor>& inputs);

}  // namespace reynard::models
