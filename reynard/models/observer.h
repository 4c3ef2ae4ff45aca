#pragma once
// What a forward pass lets a caller see, per layer: inputs of the attention kernel and its pruning.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reynard::models {

// What an observer is shown of one attention layer. Tensors must not be changed; with states only
// the tokens of this call are shown.
struct AttentionView {
  at::Tensor q;         // (N, H, D) as the kernel reads it
  at::Tensor k;         // (N, G, D), of a layer with a memory as local contexts have them
  at::Tensor log_gate;  // (N, H) f32 or undefined
  // (H, ceil(N/128)) i32: first key kept per query block. Undefined where it is not known: with
  // states, in crossbatch training, and of a layer that reads a memory while it prunes.
  at::Tensor start;
  at::Tensor first_key;         // (N) i32; a layer with a memory counts from the oldest key in it
  at::Tensor first_local = {};  // (N) i32: a query sees the keys before it in the memory, if there
                                // is one; else undefined
  int64_t top_k = 0;         // of the keys in the memory a query and head read so many best; 0: all
  at::Tensor memory_k = {};  // (N, G, D): as the memory has them, without positions; undefined: k
  // (H) f32: the share of a query's attention that all keys of its memory have together, if there
  // are any (MemoryMerge::kGated). Undefined: one softmax over them and the local keys.
  at::Tensor memory_share = {};
  // (N) i32: gates act on the keys from here on; earlier ones are a memory that does not decay.
  // Undefined: on all.
  at::Tensor first_decayed = {};
};

// A copy on the CPU, for later: the forward pass may reuse what it shows.
AttentionView copied_to_cpu(AttentionView view);

// Per head (H): share of the 128 x 64 tiles that the layer's queries see and pruning skips; NaN
// where the view has no start. Of one that has, start and first_key are read, else q.
std::vector<double> pruned_tiles(const AttentionView& view);

// Default: nothing.
struct Observer {
  virtual ~Observer() = default;
  virtual bool wants(int64_t /*layer*/) { return false; }
  virtual void attention(int64_t /*layer*/, const AttentionView& /*view*/) {}
};

}  // namespace reynard::models
