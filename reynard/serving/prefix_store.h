#pragma once
// States of what was read and written, kept for prompts that begin alike: a new prompt shares their
// pages and reads only what differs. The least recently used go first.
//
// A state goes back to page ends as far as its eviction horizon, and what was freed before it no
// text that goes on from there needs, whatever its tokens (docs/attention.md, eviction). A text of
// a model that frees pages is therefore several entries, which share the pages they still have.

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

  // Lengths are whole pages and never all of the prompt.
  struct Found {
    // Of the longest beginning of the prompt that an entry can go back to; nothing without one.
    std::optional<models::SequenceState> state;
    int64_t num_common = 0;  // tokens that the prompt begins with as an entry does
  };
  Found find(std::span<const int64_t> prompt);
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
    int64_t shortest = 0;  // page end that the state can go back to

    bool covers(const Entry& other) const;
  };
  void count(Entry& entry, int32_t users);

  int64_t max_pages_;
  int64_t num_pages_ = 0;
  std::vector<int32_t> users_;  // of each page: entries
  std::list<Entry> entries_;    // most recently used first
};

}  // namespace reynard::serving
