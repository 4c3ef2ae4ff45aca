#pragma once
// What a sequence mixer is to the decoder: one file pair in mixers/ and one line in registry.cpp.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace reynard::models {

class SequenceState;
struct Observer;
struct Parameter;
using ParameterVisitor = std::function<void(const std::string& name, Parameter& parameter)>;

// The ragged batch that a forward pass works on.
struct Ragged {
  at::Tensor offsets;    // (S) i64: index of each sequence's first token
  at::Tensor positions;  // (N) i64: position of each token in its sequence (cached tokens counted)
  at::Tensor first_key;  // (N) i32: index of the first key that each token may see, window included
  std::span<SequenceState* const> states;  // empty, or one per sequence
};

// What an observer is shown of one attention layer.
struct AttentionView {
  at::Tensor q;          // (N, H, D) as the kernel reads it
  at::Tensor k;          // (N, G, D)
  at::Tensor log_gate;   // (N, H) f32 or undefined
  at::Tensor start;      // (H, ceil(N/128)) i32: first key kept per query block
  at::Tensor first_key;  // (N) i32
};

class Mixer {
 public:
  virtual ~Mixer() = default;
  // x (N, C) normed input -> (N, C) in the compute dtype.
  virtual at::Tensor forward(const at::Tensor& x,
                             const Ragged& ragged,
                             int64_t layer,
                             Observer* observer) = 0;
  // Names are relative to the layer: "attn.q_proj.weight".
  virtual void parameters(const ParameterVisitor& visit) = 0;
};

}  // namespace reynard::models
