#pragma once
// The norm of all elements of many tensors, as gradients are clipped by.

#include <ATen/core/Tensor.h>

#include <span>

namespace reynard::ops {

// () f64, on the device of the tensors (of none: 0 on the CPU). On the CPU squares are summed in
// blocks that depend on the shapes alone and the blocks in their order, so that the bits do not
// depend on the number of threads.
at::Tensor global_norm(std::span<const at::Tensor> tensors);

}  // namespace reynard::ops
