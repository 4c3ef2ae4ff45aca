#pragma once
// Byte-pair encoding: a piece of text starts as its smallest tokens (bytes or characters), and the
// pair of neighbours with the lowest rank, the leftmost of equals, is joined until none is left.
// What pieces are and what the smallest tokens are is the caller's business.

#include "reynard/tokenizer/merge_table.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace reynard::tokenizer {

// Joins ids in place and returns how many are left. Work grows as n log n.
std::size_t join_pairs(const MergeTable& merges, std::span<int32_t> ids);

// The ids of pieces that were seen before: a table of fixed size in which a newer piece takes the
// place of an older one. Text in natural languages repeats: nine of ten pieces are found here.
class PieceCache {
 public:
  // Bytes behind a piece that must be readable.
  static constexpr std::size_t kPadding = 32;
  static constexpr std::size_t kMaxBytes = 31;
  static constexpr std::size_t kMaxIds = 7;

  struct alignas(64) Entry {
    uint64_t key[4] = {};  // the piece's bytes, and their number in the last byte; 0: no entry
    int32_t ids[kMaxIds] = {};
    int32_t num_ids = 0;
  };

  PieceCache() : entries_(kNumEntries) {}
  // The place of a piece of 1 to kMaxBytes bytes: where `hit` is false, store() must follow.
  struct Place {
    Entry& entry;
    bool hit;
  };
  Place find(std::string_view piece);
  // More than kMaxIds ids are not kept.
  static void store(Entry& entry, std::span<const int32_t> ids);

 private:
  static constexpr std::size_t kNumEntries = 1 << 16;  // 4 MB: a shared cache holds it
  std::vector<Entry> entries_;
};

}  // namespace reynard::tokenizer
