#include "reynard/models/parameter.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

namespace reynard::models {

namespace {

Parameter vector_parameter(const at::Tensor& value, bool frozen) {
  Parameter parameter;
  parameter.value = value;
  parameter.value.requires_grad_(!frozen);
  parameter.decay = false;
  parameter.frozen = frozen;
  parameter.product = false;
  return parameter;
}

}  // namespace

at::Tensor product(const at::Tensor& x, const Parameter& weight, const at::Tensor& bias) {
  return ops::linear(x, weight_of(weight), bias);
}

at::Tensor rows_of(const Parameter& weight, const at::Tensor& ids) {
  if (weight.scales.defined()) {
    return weight.value.index_select(0, ids).to(at::kFloat) *
           weight.scales.index_select(0, ids).unsqueeze(1);
  }
  const at::Tensor rows = at::embedding(weight.value, ids);
  return rows.scalar_type() == at::kDouble ? rows : rows.to(at::kFloat);
}

Initializer::Initializer(double std, uint64_t seed, at::Device device)
    : std_(std), generator_(at::detail::createCPUGenerator(seed)), device_(device) {}

Parameter Initializer::matrix(int64_t rows, int64_t columns) {
  Parameter parameter;
  // Drawn on the CPU whatever the device: the same seed gives the same weights everywhere.
  const at::Device drawn_on = device_.is_meta() ? device_ : at::Device(at::kCPU);
  parameter.value =
      at::empty({rows, columns}, at::TensorOptions().dtype(at::kFloat).device(drawn_on));
  if (!device_.is_meta()) parameter.value.normal_(0, std_, generator_);
  parameter.value = parameter.value.to(device_);
  parameter.value.requires_grad_(true);
  return parameter;
}

Parameter Initializer::norm(int64_t size) {
  return bias(size, 1);
}

Parameter Initializer::bias(int64_t size, double value) {
  return vector_parameter(
      at::full({size}, value, at::TensorOptions().dtype(at::kFloat).device(device_)), false);
}

Parameter Initializer::bias(const at::Tensor& values, bool frozen) {
  return vector_parameter(values.to(device_, at::kFloat), frozen);
}

}  // namespace reynard::models
