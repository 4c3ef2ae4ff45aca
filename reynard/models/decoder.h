#pragma once
// One decoder for every published family: embedding, a list of (norm, mixer, norm, mlp), final
// norm, head. Input is ragged: the tokens of all sequences one after the other, so that training
// batches, prefill chunks and decode steps are the same call. Loss and logits are the caller's (in
// chunks, ops/).

#include "reynard/models/decoder_config.h"
#include "reynard/models/mixer.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace reynard::models {

class SequenceState;  // models/state.h: what one sequence needs to go on

// A named weight. Names are those of the FoX layout ("model.layers.0.attn.q_proj.weight"); families
// rename them on load and save.
struct Parameter {
  at::Tensor value;    // f32 master, a leaf that requires grad unless frozen
  at::Tensor compute;  // bf16 copy that forward uses, or undefined (then forward uses value)
  bool decay =
      true;  // AdamW weight decay applies (published groups: weights yes, norms and biases no)
  bool frozen = false;  // saved with the model, never trained (fixed gates)
};
using ParameterVisitor = std::function<void(const std::string& name, Parameter& parameter)>;

// What a forward pass lets a caller see, per layer. Default: nothing.
struct Observer {
  virtual ~Observer() = default;
  virtual bool wants(int64_t /*layer*/) { return false; }
  // Called for layers that it wants: q, k (N, H or G, D) as the kernel reads them, log_gate (N, H)
  // f32 or undefined, start (H, ceil(N/128)) i32, first_key (N) i32.
  virtual void attention(int64_t /*layer*/, const AttentionView& /*view*/) {}
};

struct ForwardOptions {
  bool checkpoint_activations = false;  // recompute each block in the backward pass
  Observer* observer = nullptr;
};

class Decoder {
 public:
  // Random weights (FoX init, N(0, initializer_range^2), norms 1) from the given seed.
  explicit Decoder(const DecoderConfig& config, uint64_t seed = 0);

  // tokens  (N) i64: all sequences, one after the other
  // offsets (S) i64: index of each sequence's first token, ascending, offsets[0] = 0
  // states  empty, or one per sequence: its earlier tokens; extended by this call
  // -> (N, C) f32 or the compute dtype, after the final norm
  at::Tensor hidden(const at::Tensor& tokens,
                    const at::Tensor& offsets,
                    std::span<SequenceState* const> states = {},
                    const ForwardOptions& options = {});

  const Parameter& head() const;  // (V, C)
  const DecoderConfig& config() const { return config_; }
  // Visits every parameter in a fixed order.
  void parameters(const ParameterVisitor& visit);
  // bf16: gives every matrix a compute copy; f32: drops them. Norms, gates and residual stay f32.
  void set_compute_dtype(at::ScalarType dtype);
  // Copies masters into compute copies; the optimizer calls it after each step.
  void refresh_compute();

 private:
  struct Block;
  DecoderConfig config_;
  Parameter embedding_, norm_, head_;
  std::vector<std::shared_ptr<Block>> blocks_;
  at::ScalarType compute_dtype_ = at::kFloat;
};

}  // namespace reynard::models
