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
  // max_pages: of all layers and heads together; 0: nothing is kept.
  explicit PrefixStore(int64_t max_pages) : max_pages_(max_pages) {}

  // A state of the longest stored beginning of the prompt, whole pages and never all of it; nothing
  // when there is none.
  std::optional<models::SequenceState> find(std::span<const int64_t> prompt);
  // tokens: what the state has read, of which whole pages are kept. Forgets the oldest where the
  // limit asks for it.
  void add(std::span<const int64_t> tokens, const models::SequenceState& state);
  // Forgets the least recently used entry; false when there is none.
  bool forget_oldest();
  // Held by entries: one that several share counts once. What lies in a memory counts as the pages
  // that it was.
  int64_t num_pages() const { return num_pages_; }

 private:
  struct Entry {
    std::vector<int64_t> tokens;
    models::SequenceState state;
  };
  void count(Entry& entry, int32_t users);

  int64_t max_pages_;
  int64_t num_pages_ = 0;
  std::vector<int32_t> users_;  // of each page: entries
  std::list<Entry> entries_;    // most recently used first
};

}  // namespace reynard::serving
