#pragma once
// A named weight of a model, and how weights get their first values.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace reynard::models {

// Names are those of the FoX layout ("model.layers.0.attn.q_proj.weight"); families rename them on
// load and save.
struct Parameter {
  at::Tensor value;    // f32 master, a leaf that requires grad unless frozen
  at::Tensor compute;  // bf16 copy that forward uses, or undefined (then forward uses value)
  bool decay =
      true;  // AdamW weight decay applies (published groups: weights yes, norms, biases no)
  bool frozen = false;  // saved with the model, never trained (fixed gates)
  bool product = true;  // read by a matrix product: has a compute copy in mixed precision
};
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
