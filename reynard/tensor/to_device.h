#pragma once
// Small host tensors, such as page tables, on their way to kernels of a GPU. Nobody waits: a copy
// is queued behind what the device still has to do, and pageable memory is read before the call
// returns, so the host may change or free it at once.

#include <ATen/core/Tensor.h>

#include <span>

namespace reynard::tensor {

// t itself where it lies on the device.
at::Tensor to_device(const at::Tensor& t, at::Device device);

// Replaces tensors on the CPU, contiguous, by copies on the device that share one block of memory:
// one copy for all. Each begins at a multiple of 16 bytes.
void to_device_together(std::span<at::Tensor* const> tensors, at::Device device);

}  // namespace reynard::tensor
