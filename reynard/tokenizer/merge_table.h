#pragma once
// What byte-pair encoding knows of pairs of tokens: (left, right) -> (rank, joined token), in one
// open-addressing table. Pairs of a lower rank are joined first.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace reynard::tokenizer {

struct Merge {
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  int32_t rank = kNone;
  int32_t joined = -1;
};

class MergeTable {
 public:
  explicit MergeTable(std::size_t num_merges = 0) {
    std::size_t size = 16;
    while (size < 2 * num_merges) size *= 2;
    entries_.resize(size);
  }

  // A pair that was there gets the new merge.
  void set(int32_t left, int32_t right, Merge merge) {
    if (2 * (num_merges_ + 1) > entries_.size()) grow();
    Entry& entry = find(key_of(left, right));
    num_merges_ += entry.key == kEmpty;
    entry = {key_of(left, right), merge};
  }

  // Merge{} where the pair is none.
  Merge get(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (std::size_t slot = slot_of(key);; slot = (slot + 1) & (entries_.size() - 1)) {
      const Entry& entry = entries_[slot];
      if (entry.key == key) return entry.merge;
      if (entry.key == kEmpty) return {};
    }
  }

  std::size_t size() const { return num_merges_; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Entry {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  std::size_t slot_of(uint64_t key) const {
    key *= 0x9e3779b97f4a7c15U;
    return (key ^ key >> 32) & (entries_.size() - 1);
  }
  Entry& find(uint64_t key) {
    std::size_t slot = slot_of(key);
    while (entries_[slot].key != kEmpty && entries_[slot].key != key) {
      slot = (slot + 1) & (entries_.size() - 1);
    }
    return entries_[slot];
  }
  void grow() {
    const std::vector<Entry> old = std::move(entries_);
    entries_.assign(2 * old.size(), {});
    for (const Entry& entry : old) {
      if (entry.key != kEmpty) find(entry.key) = entry;
    }
  }

  std::vector<Entry> entries_;
  std::size_t num_merges_ = 0;
};

}  // namespace reynard::tokenizer
