#pragma once
// What one sequence needs to go on in a decoder: cache pages per layer (attention/cache.h) plus
// small carry tensors (the last raw keys and values of the token shift). Inference only. Not
// thread-safe.
//
//   auto pool = make_page_pool(decoder);
//   SequenceState state(decoder, pool);
//   decoder.hidden(prompt, offsets, std::array{&state});   // prefill
//   decoder.hidden(token, offsets, std::array{&state});    // decode

#include "reynard/attention/cache.h"
#include "reynard/models/layer_memory.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace reynard::models {

class Decoder;

// Storage for the pages of all layers of any number of sequences of one decoder. max_pages limits
// the memory; 0: no limit.
std::shared_ptr<attention::PagePool> make_page_pool(const Decoder& decoder, int64_t max_pages = 0);

// Raw (unshifted) keys and values of the last token, for the token shift; undefined where off.
struct Carry {
  at::Tensor k, v;  // (1, G D); (T, G D) of several tokens
};
// One that is kept: a row of tensors that several sequences may share.
struct KeptCarry {
  int64_t length = 0;  // after the token
  Carry rows;          // (S, G D)
  int64_t row = 0;

  Carry carry() const;  // (1, G D)
  void own_row();       // a copy of its row alone, which keeps no other text's in memory
};
// By length, ascending. Not a map: a long text has thousands, and each step writes at the end.
using Carries = std::vector<KeptCarry>;

// What a state's cache holds, for people and metrics.
struct CacheUse {
  std::vector<std::vector<int64_t>> pages_kept;  // [L][G]
  int64_t pages_seen = 0;                        // per (layer, kv head), evicted ones included
  int64_t page_bytes = 0;                        // keys, values and gate sums of one page
  // Largest log share of a query's mass that eviction has allowed in a layer; -inf: none evicted.
  double log_evicted_share = 0;

  int64_t bytes_kept() const;
  int64_t bytes_saved() const;
};

// Everything of a state as plain tensors: to be saved, or restored into another pool.
struct StateSnapshot {
  struct Layer {
    attention::CacheSnapshot cache;
    Carries carries;
    LayerMemory memory;
    int64_t begin = 0;
  };
  std::vector<Layer> layers;
};

class SequenceState {
 public:
  // Carries are kept after each of the last kCarryTokens tokens, at least, and at every page end:
  // where truncate can go back to.
  static constexpr int64_t kCarryTokens = 32;

  SequenceState(const Decoder& decoder, std::shared_ptr<attention::PagePool> pool);
  SequenceState(SequenceState&&) noexcept = default;
  SequenceState& operator=(SequenceState&&) noexcept = default;

  int64_t length() const { return layers_[0].begin + window_length(); }
  // Tokens of the current local context: all, without a memory.
  int64_t window_length() const { return layers_[0].cache.length(); }
  int64_t num_layers() const { return static_cast<int64_t>(layers_.size()); }
  // A state that shares all pages; whoever writes into a shared page copies it first.
  SequenceState fork() const;
  // Whether carries (kept only with token shifts), eviction and the begin of the local context
  // allow going back to this length.
  bool can_truncate(int64_t length) const;
  // Forgets the tokens from `length` on. Throws reynard::Error when can_truncate is false.
  void truncate(int64_t length);
  CacheUse cache_use() const;
  StateSnapshot snapshot() const;
  static SequenceState restore(std::shared_ptr<attention::PagePool> pool,
                               const StateSnapshot& snapshot);

  // For mixers: a layer's cache, and the carry after its last token (undefined tensors at length
  // 0).
  attention::LayerCache& cache(int64_t layer) { return layers_[layer].cache; }
  Carry carry(int64_t layer) const;
  // All that are kept, the last one's at the end; none without token shifts.
  const Carries& carries(int64_t layer) const { return layers_[layer].carries; }
  // Forgets all carries but those at page ends, where alone it can go back to from then on: for a
  // state that is kept and whose length is a page end.
  void keep_page_ends();
  // Raw keys and values (T, G D) of the T tokens that were just appended to the cache of the
  // layer, or of the last one that passed.
  void remember(int64_t layer, const Carry& raw);
  // The same of one token, which is a row of `rows` (S, G D): a step of S sequences leaves them
  // together.
  void remember_row(int64_t layer, const Carry& rows, int64_t row);
  LayerMemory& memory(int64_t layer) { return layers_[layer].memory; }
  // Throws reynard::Error where a memory has a failure(): the text cannot go on.
  void check_memories() const;
  // The sequence will have so many tokens: memories make room for them at once.
  void expect(int64_t tokens);
  // Tokens went by whose local contexts have ended: what is needed of them is in the memories.
  void pass(int64_t tokens);
  // (H, T) f64: gate sums of the layer's local context, from its first token.
  at::Tensor gate_sums(int64_t layer) const;
  // Ends the layer's local context: what it needs later must be in its memory.
  void leave_window(int64_t layer);

 private:
  struct Layer {
    attention::LayerCache cache;
    Carries carries;
    LayerMemory memory = {};
    int64_t begin = 0;  // position of the cache's first token
  };
  SequenceState() = default;
  static bool keeps_carry(int64_t length, int64_t end);
  // Makes room for the carry of a token that was just added; returns the length with it.
  int64_t drop_carries(int64_t layer);

  std::vector<Layer> layers_;
};

}  // namespace reynard::models
