#pragma once
// Tensors of few rows. Each operator of a decoded token makes one, and as the library makes them
// they take a third of all that such a token does between its products: a walk through its
// dispatcher, and an aligned allocation, which the C library keeps no lists of free blocks for.

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

namespace reynard::tensor {

// at::empty for contiguous tensors: on the CPU those of up to 16 KiB lie in blocks that threads
// keep for the next ones. Values are undefined. Builds with AddressSanitizer keep no blocks.
at::Tensor empty_rows(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace reynard::tensor
