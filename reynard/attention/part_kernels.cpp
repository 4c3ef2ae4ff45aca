#include "reynard/attention/part_kernels.h"

#include "reynard/tensor/check.h"
#include "reynard/tensor/cuda.h"

#include <array>

namespace reynard::attention {

namespace {

using Tables = std::array<const PartKernels*, at::COMPILE_TIME_MAX_DEVICE_TYPES>;

Tables& tables() {
  static Tables registered = {};
  return registered;
}

const PartKernels*& table_of(at::DeviceType device) {
  return tables().at(static_cast<size_t>(device));
}

}  // namespace

const PartKernels& part_kernels(const at::Tensor& t) {
  const at::DeviceType device = t.device().type();
  if (!table_of(device) && device == at::kCUDA) tensor::open_cuda_library();
  if (!table_of(device)) {
    tensor::fail("attention", "device of q", t.device().str(), "cpu or cuda");
  }
  return *table_of(device);
}

void register_part_kernels(at::DeviceType device, const PartKernels& kernels) {
  table_of(device) = &kernels;
}

}  // namespace reynard::attention
