#pragma once
// What a sequence mixer is to the decoder: one file pair in mixers/ and one line in registry.cpp.

#include "reynard/models/crossbatch.h"
#include "reynard/models/observer.h"
#include "reynard/models/parameter.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace reynard::attention {
struct Eviction;  // attention/cache.h
}

namespace reynard::models {

struct MemoryStore;  // models/layer_memory.h
class SequenceState;
struct Step;  // models/step.h

// Rows [begin, end) of a ragged batch that are one local context, or the part of it in this call.
struct Window {
  int64_t begin, end;
  int64_t sequence;
};

// The ragged batch that a forward pass works on.
struct Ragged {
  at::Tensor tokens;     // (N) i64
  at::Tensor offsets;    // (S) i64: index of each sequence's first token
  at::Tensor positions;  // (N) i64: position of each token in its window (cached tokens counted)
  at::Tensor first_key;  // (N) i32: index of the first key that each token may see, window included
  std::vector<int64_t> bounds;             // (S + 1): offsets and N, for the CPU
  std::span<SequenceState* const> states;  // empty, or one per sequence
  // Whose last tokens a token shift goes on from: `states`, or those of sequences whose contexts
  // are computed alone (Decoder::remember).
  std::span<SequenceState* const> carried;
  std::vector<Window> windows;  // in order; one per sequence, or more with a memory
  std::optional<Crossbatch> crossbatch;
  // Not null: a step, without states; only tokens, offsets and positions are set. Mixers leave
  // there what it asks for.
  Step* step = nullptr;
};

class Mixer {
 public:
  virtual ~Mixer() = default;
  // x (N, C) normed input -> (N, C) in the compute dtype.
  virtual at::Tensor forward(const at::Tensor& x,
                             const Ragged& ragged,
                             int64_t layer,
                             Observer* observer) = 0;
  // Whether forward takes Ragged::step.
  virtual bool takes_steps() const { return false; }
  // Frees what no token from `horizon` on sees of the layer's state (sequence states,
  // models/state.h) and returns the number of pages. Where gates make such tokens forget, adds the
  // layer's cache to what is evicted for all layers and states together.
  virtual int64_t evict(SequenceState& /*state*/,
                        int64_t /*layer*/,
                        int64_t /*horizon*/,
                        std::vector<attention::Eviction>& /*forgetting*/) const {
    return 0;
  }
  // Ends the local context of the layer's state (memory_attention).
  virtual void start_window(SequenceState& /*state*/, int64_t /*layer*/) const {}
  // Adds the keys and values of tokens that begin new local contexts (x as forward) to the layer's
  // memory, and leaves what a token shift carries over (memory_attention).
  virtual void remember(const at::Tensor& /*x*/,
                        const Ragged& /*ragged*/,
                        int64_t /*layer*/,
                        SequenceState& /*state*/) const {}
  virtual void set_log_pruning_tolerance(double /*log_tolerance*/) {}
  virtual void set_measured_eviction(bool /*on*/) {}
  // How states keep their memories, and how many of the best keys are read (memory_attention).
  virtual void set_memory(const MemoryStore& /*store*/, int64_t /*top_k*/) {}
  // Names are relative to the layer: "attn.q_proj.weight".
  virtual void parameters(const ParameterVisitor& visit) = 0;
};

}  // namespace reynard::models
