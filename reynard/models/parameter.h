#pragma once
// A named weight of a model, and how weights get their first values.

#include "reynard/ops/linear.h"

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace reynard::models {

// Names are those of the FoX layout ("model.layers.0.attn.q_proj.weight"); families rename them on
// load and save.
// In a model that is trained, value is an f32 master (a leaf that requires grad unless frozen) and
// compute its bf16 copy that forward uses, or undefined (then forward uses value). In one that is
// only read, a product's value may be bf16 (then compute is the same tensor) or i8 with scales.
struct Parameter {
  at::Tensor value;
  at::Tensor compute;
  at::Tensor scales;  // (rows) f32 of an int8 weight (ops/int8_linear.h), else undefined
  bool decay =
      true;  // AdamW weight decay applies (published groups: weights yes, norms, biases no)
  bool frozen = false;  // saved with the model, never trained (fixed gates)
  bool product = true;  // read by a matrix product: has a compute copy in mixed precision
};
// What ops/linear.h multiplies with.
inline ops::Weight weight_of(const Parameter& parameter) {
  return {.value = parameter.value, .compute = parameter.compute, .scales = parameter.scales};
}
// x W^T + bias (f32 or undefined) in the dtype of the weight's products.
at::Tensor product(const at::Tensor& x, const Parameter& weight, const at::Tensor& bias = {});
// The rows of these ids (N) as f32 (f64 of an f64 weight): the embedding of tokens.
at::Tensor rows_of(const Parameter& weight, const at::Tensor& ids);

using ParameterVisitor = std::function<void(const std::string& name, Parameter& parameter)>;

// Makes parameters: N(0, std^2) for matrices without depth rescaling, as every FoX and LLaMA model
// of the papers. On the meta device nothing is allocated or drawn: shapes only.
class Initializer {
 public:
  Initializer(double std, uint64_t seed, at::Device device);

  Parameter matrix(int64_t rows, int64_t columns);  // (rows, columns), decayed
  Parameter norm(int64_t size);                     // (size) ones, not decayed
  Parameter bias(int64_t size, double value = 0);   // (size), not decayed
  Parameter bias(const at::Tensor& values, bool frozen);

 private:
  double std_;
  at::Generator generator_;
  at::Device device_;
};

}  // namespace reynard::models
