#pragma once
// States of finished texts, kept for prompts that begin alike: a new prompt shares their pages and
// reads only what differs. The least recently used go first.

#include "reynard/models/state.h"

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

namespace reynard::serving {

class PrefixStore {
 public:
  explicit PrefixStore(int64_t max_tokens) : max_tokens_(max_tokens) {}

  // A state of the longest stored beginning of the prompt, whole pages and never all of it; nothing
  // when there is none.
  std::optional<models::SequenceState> find(std::span<const int64_t> prompt);
  // tokens: what the state has read, of which whole pages are kept. Forgets the oldest where the
  // limit asks for it.
  void add(std::span<const int64_t> tokens, const models::SequenceState& state);
  // Forgets the least recently used entry; false when there is none.
  bool forget_oldest();
  int64_t num_tokens() const { return num_tokens_; }  // whole pages

 private:
  struct Entry {
    std::vector<int64_t> tokens;
    models::SequenceState state;
  };

  int64_t max_tokens_;
  int64_t num_tokens_ = 0;
  std::list<Entry> entries_;  // most recently used first
};

}  // namespace reynard::serving
