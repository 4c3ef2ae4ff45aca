#include "reynard/attention/part_kernels.h"

#include "reynard/tensor/check.h"
#include "reynard/tensor/cuda.h"

#include <ATen/ops/empty.h>

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

BackwardPart empty_gradients(const PartArguments& arguments, at::ScalarType dq_dtype) {
  const at::Tensor& q = arguments.q;
  const KeyPart& part = arguments.part;
  BackwardPart result;
  result.dq = at::empty(q.sizes(), q.options().dtype(dq_dtype));
  result.dk = at::empty(part.k.sizes(), q.options());
  result.dv = at::empty(part.v.sizes(), q.options());
  if (part.sums.defined()) {
    const auto f64 = q.options().dtype(at::kDouble);
    result.dquery_sums = at::empty({q.size(0), q.size(2), q.size(1)}, f64);
    result.dsums = at::empty({q.size(0), q.size(2), part.k.size(1)}, f64);
  }
  return result;
}

}  // namespace reynard::attention
