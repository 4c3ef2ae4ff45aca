#pragma once
// States of what was read and written, kept for prompts that begin alike: a new prompt shares their
// pages and reads only what differs. The least recently used go first.
//
// A state goes back to page ends as far as its eviction horizon, and what was freed before it no
// text that goes on from there needs, whatever its tokens (docs/attention.md, eviction). A text of
// a model that frees pages is therefore several entries, which share the pages they still have.

#include "reynard/attention/cache.h"
#include "reynard/models/state.h"

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

namespace reynard::serving {

class PrefixStore {
 public:
  // max_tokens: of texts that free no pages, of which each of num_heads has its own (heads of keys
  // and values, in all layers); 0: nothing is kept.
  PrefixStore(int64_t max_tokens, int64_t num_heads)
      : num_heads_(num_heads),
        max_pages_(max_tokens / attention::kPageTokens * num_heads),
        max_entry_tokens_(kMostEntryTokens * max_tokens) {}

  // Lengths are whole pages and never all of the prompt.
  struct Found {
    // Of the longest beginning of the prompt that an entry can go back to; nothing without one.
    std::optional<models::SequenceState> state;
    int64_t num_common = 0;  // tokens that the prompt begins with as an entry does
  };
  Found find(std::span<const int64_t> prompt);
  // tokens: what the state has read, of which whole pages are kept. Forgets the oldest where the
  // limit asks for it. Where memory runs out, what was counted of the others stays right.
  void add(std::span<const int64_t> tokens, const models::SequenceState& state);
  // Forgets the least recently used entry, if there is one.
  void forget_oldest();
  // What entries hold that no text does beside them, as tokens of texts that free no pages.
  int64_t num_own_tokens();

 private:
  // Entries share pages, but each has its tokens, and find() looks at all of them: together they
  // may have so many times as many tokens as the store. Those of one text that frees pages have
  // nine times its length.
  static constexpr int64_t kMostEntryTokens = 16;

  struct Entry {
    std::vector<int64_t> tokens;
    models::SequenceState state;
    int64_t shortest = 0;  // page end that the state can go back to

    bool covers(const Entry& other) const;
  };
  void count(Entry& entry, int32_t change);

  int64_t num_heads_;
  // Held by entries: one that several share counts once. What lies in a memory counts as the pages
  // that it was.
  int64_t max_pages_;
  int64_t num_pages_ = 0, num_remembered_ = 0;  // the latter of memories
  int64_t max_entry_tokens_;
  int64_t num_entry_tokens_ = 0;
  std::vector<int32_t> users_;  // of each page: entries
  std::list<Entry> entries_;    // most recently used first
};

}  // namespace reynard::serving
