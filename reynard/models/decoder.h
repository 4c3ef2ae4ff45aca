#pragma once
// One decoder for every published family: embedding, a list of (norm, mixer, norm, mlp), final
// norm, head. Input is ragged: the tokens of all sequences one after the other, so that training
// batches, prefill chunks and decode steps are the same call. Loss and logits are the caller's (in
// chunks, ops/).

#include "reynard/models/crossbatch.h"
#include "reynard/models/decoder_config.h"
#include "reynard/models/layer_memory.h"
#include "reynard/models/mixer.h"
#include "reynard/models/observer.h"
#include "reynard/models/parameter.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace reynard::models {

class SequenceState;  // models/state.h: what one sequence needs to go on
struct Step;          // models/step.h

struct ForwardOptions {
  // Sequences are the contexts of a batch of documents that see each other's keys (training of a
  // memory, mixer memory_attention).
  std::optional<Crossbatch> crossbatch = {};
  bool checkpoint_activations = false;  // recompute each block in the backward pass
  Observer* observer = nullptr;
};

class Decoder {
 public:
  // Random weights (FoX init, N(0, initializer_range^2), norms 1) from the given seed, the same on
  // every device. On the meta device: shapes only, for counting and loading. Throws reynard::Error
  // for an impossible config.
  explicit Decoder(const DecoderConfig& config, uint64_t seed = 0, at::Device device = at::kCPU);
  ~Decoder();
  Decoder(Decoder&&) noexcept;

  // tokens and offsets are checked on the CPU, where they should lie, and moved to the decoder's
  // device.
  // tokens  (N) i64: all sequences, one after the other
  // offsets (S) i64: index of each sequence's first token, ascending, offsets[0] = 0
  // states  empty, or one per sequence: its earlier tokens; extended by this call (no gradients)
  // -> (N, C) f32 or the compute dtype, after the final norm
  at::Tensor hidden(const at::Tensor& tokens,
                    const at::Tensor& offsets,
                    std::span<SequenceState* const> states = {},
                    const ForwardOptions& options = {});
  // The same of one more token for each of S sequences, by tables that lie on the device
  // (models/step.h); nothing is checked. -> (S, C)
  at::Tensor hidden(Step& step);
  // Whether all mixers take steps.
  bool takes_steps() const;

  // Ends the state's local context: its keys go to the memory of the layers that have one (mixer
  // memory_attention; nothing in others).
  void start_window(SequenceState& state) const;

  // Reads the next tokens (N) i64 of a text whose hidden states nobody needs, in local contexts
  // from where the state's ends; the last of them ends too. Where it remembers_alone(), little more
  // is computed than what they leave there: for millions of tokens. Else it is hidden(). No
  // gradients. Throws reynard::Error for keys and values that are not finite too: the state has
  // taken the tokens then, and cannot go on.
  void remember(const at::Tensor& tokens, SequenceState& state);
  // Only one layer has a memory and no gate decays it.
  bool remembers_alone() const;

  // Frees pages of states of one pool that no token from the state's last page end on can need:
  // left of the window, or forgotten up to exp(log_tolerance) of any query's attention mass per
  // layer (forget gates with QK-norm, see set_measured_eviction; 0: window only). A state can still
  // be truncated to that page end, but not below it. States wait for a GPU's work together. Returns
  // pages freed.
  int64_t evict(std::span<SequenceState* const> states, double log_tolerance) const;

  const Parameter& head() const;  // (V, C)
  const DecoderConfig& config() const { return config_; }
  at::Device device() const { return embedding_.value.device(); }
  // Tokens that begin and end a text, for config() and the files of the model: weights that are
  // trained here name those of their text.
  void name_text_ends(int64_t bos, int64_t eos) {
    config_.bos_token_id = bos;
    config_.eos_token_id = eos;
  }
  // Overrides what the config says (attention.log_pruning_tolerance; 0: off).
  void set_log_pruning_tolerance(double log_tolerance);
  // Models with forget gates but without QK-norm evict too, as if no later query or key were longer
  // than those of the state so far: a heuristic, whose bound may not hold. Off by default; to be
  // set before the states are filled.
  void set_measured_eviction(bool on);
  bool measured_eviction() const { return measured_eviction_; }
  // Override what the config says of a memory: newest tokens kept (0: all; kNoMemory: none, so that
  // contexts see nothing of each other) and best keys read (0: all).
  static constexpr int64_t kNoMemory = -1;
  void set_memory_limits(int64_t capacity, int64_t top_k);
  // Where the memories of states lie, and whether int8 codes lie beside their keys: on the CPU a
  // search for few queries then reads half the bytes. Neither changes what a search finds;
  // attention to all keys rounds differently where it reads them in pieces. To be set before
  // states are filled, as the limits. Throws reynard::Error for codes on a GPU.
  void set_memory_place(knn::MemoryPlace place, bool coded);
  // How memories are kept with these limits and in this place.
  const MemoryStore& memory_store() const { return memory_store_; }
  // Visits every parameter in a fixed order.
  void parameters(const ParameterVisitor& visit);
  // bf16: gives every matrix a compute copy; f32: drops them. Norms, gates and residual stay f32.
  void set_compute_dtype(at::ScalarType dtype);
  // For whoever fills the parameters with weights that are only read (models/pretrained.h): the
  // dtype of products, and so of caches.
  void set_read_only(at::ScalarType products);
  at::ScalarType compute_dtype() const { return compute_dtype_; }

  // Whether caches of this decoder keep keys and values as int8 (CPU; make_page_pool).
  void set_int8_cache(bool on) { int8_cache_ = on; }
  bool int8_cache() const { return int8_cache_; }
  // Copies masters into compute copies; the optimizer calls it after each step.
  void refresh_compute();

 private:
  struct Block;
  at::Tensor hidden(const Ragged& ragged, const ForwardOptions& options);
  void set_memory(const MemoryStore& store, int64_t top_k);
  // How many of the last tokens remember() must read as text is read: a token shift carries keys
  // across contexts in the layers behind the memory's too, and those of the n-th such layer are the
  // right ones after n contexts that were read.
  int64_t tokens_to_read(int64_t tokens) const;
  // Adds contexts to the memory of the only layer that has one, side by side, and leaves the
  // carries of the layers up to it; those behind it keep theirs.
  void remember_alone(const at::Tensor& tokens, SequenceState& state);

  DecoderConfig config_;
  Parameter embedding_, norm_, head_;  // head_ is undefined when tied
  std::vector<std::shared_ptr<Block>> blocks_;
  at::ScalarType compute_dtype_ = at::kFloat;
  bool measured_eviction_ = false;
  bool int8_cache_ = false;
  MemoryStore memory_store_;
};

}  // namespace reynard::models
