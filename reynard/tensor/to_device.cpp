#include "reynard/tensor/to_device.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

namespace reynard::tensor {

namespace {

constexpr int64_t kAlignment = 16;

int64_t bytes_of(const at::Tensor& t) {
  return (static_cast<int64_t>(t.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

at::Tensor to_device(const at::Tensor& t, at::Device device) {
  return t.to(device, /*non_blocking=*/true);
}

void to_device_together(std::span<at::Tensor* const> tensors, at::Device device) {
  int64_t bytes = 0;
  for (const at::Tensor* t : tensors) bytes += bytes_of(*t);
  const at::Tensor block = at::empty({bytes}, at::kByte);
  auto* to = block.mutable_data_ptr<uint8_t>();
  for (const at::Tensor* t : tensors) {
    TORCH_INTERNAL_ASSERT(t->is_cpu() && t->is_contiguous(), "a contiguous host tensor");
    std::copy_n(static_cast<const uint8_t*>(t->const_data_ptr()), t->nbytes(), to);
    to += bytes_of(*t);
  }
  const at::Tensor moved = to_device(block, device);
  int64_t begin = 0;
  for (at::Tensor* t : tensors) {
    const at::Tensor own = moved.narrow(0, begin, static_cast<int64_t>(t->nbytes()));
    begin += bytes_of(*t);
    *t = own.view(t->scalar_type()).view(t->sizes());
  }
}

}  // namespace reynard::tensor
