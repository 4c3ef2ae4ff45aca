#pragma once
// The check for two tensors that go through an operator element by element.

#include <ATen/core/Tensor.h>

#include <string_view>

namespace reynard::tensor {

// Throws Error "op: gate has shape [2, 3]; expected that of x, [2, 4]" unless the shapes are equal.
void check_same_shape(std::string_view op,
                      std::string_view arg,
                      const at::Tensor& t,
                      std::string_view other_arg,
                      const at::Tensor& other);

}  // namespace reynard::tensor
