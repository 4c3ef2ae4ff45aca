#include "reynard/tokenizer/byte_pair.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <queue>

namespace reynard::tokenizer {

namespace {

// Up to here, looking through all pairs for the best is faster than a heap.
constexpr std::size_t kMaxScanned = 48;

std::size_t join_by_scan(const MergeTable& merges, std::span<int32_t> ids) {
  std::array<Merge, kMaxScanned> pairs;  // pairs[i]: of ids[i] and ids[i + 1]
  std::size_t n = ids.size();
  for (std::size_t i = 0; i + 1 < n; ++i) pairs[i] = merges.get(ids[i], ids[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == Merge::kNone) break;
    ids[best] = pairs[best].joined;
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      ids[i] = ids[i + 1];
      pairs[i - 1] = pairs[i];
    }
    --n;
    if (best > 0) pairs[best - 1] = merges.get(ids[best - 1], ids[best]);
    if (best + 1 < n) pairs[best] = merges.get(ids[best], ids[best + 1]);
  }
  return n;
}

struct Candidate {
  int32_t rank;
  int32_t joined;
  uint32_t at;  // of the left one
  int32_t left;
  int32_t right;  // the ids as they were: another pair may be there by now
};

struct Later {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
};

constexpr uint32_t kEnd = ~uint32_t{0};

// A doubly linked list over the ids, and a heap of its pairs.
class HeapJoin {
 public:
  HeapJoin(const MergeTable& merges, std::span<int32_t> ids)
      : merges_(merges), ids_(ids), next_(ids.size()), previous_(ids.size()) {
    const auto n = static_cast<uint32_t>(ids.size());
    for (uint32_t i = 0; i < n; ++i) {
      next_[i] = i + 1 < n ? i + 1 : kEnd;
      previous_[i] = i > 0 ? i - 1 : kEnd;
    }
    for (uint32_t i = 0; i + 1 < n; ++i) offer(i);
  }

  std::size_t run() {
    while (!heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      const uint32_t right = next_[best.at];
      if (right == kEnd || ids_[best.at] != best.left || ids_[right] != best.right) continue;
      ids_[best.at] = best.joined;
      ids_[right] = kGone;
      next_[best.at] = next_[right];
      next_[right] = kEnd;
      if (next_[best.at] != kEnd) {
        previous_[next_[best.at]] = best.at;
        offer(best.at);
      }
      if (previous_[best.at] != kEnd) offer(previous_[best.at]);
    }
    std::size_t n = 0;
    for (uint32_t i = 0; i != kEnd; i = next_[i]) ids_[n++] = ids_[i];
    return n;
  }

 private:
  static constexpr int32_t kGone = -1;

  void offer(uint32_t at) {
    const int32_t left = ids_[at];
    const int32_t right = ids_[next_[at]];
    const Merge merge = merges_.get(left, right);
    if (merge.rank != Merge::kNone) heap_.push({merge.rank, merge.joined, at, left, right});
  }

  const MergeTable& merges_;
  std::span<int32_t> ids_;
  std::vector<uint32_t> next_;
  std::vector<uint32_t> previous_;
  std::priority_queue<Candidate, std::vector<Candidate>, Later> heap_;
};

}  // namespace

std::size_t join_pairs(const MergeTable& merges, std::span<int32_t> ids) {
  if (ids.size() <= 1) return ids.size();
  if (ids.size() <= kMaxScanned) return join_by_scan(merges, ids);
  return HeapJoin(merges, ids).run();
}

PieceCache::Place PieceCache::find(std::string_view piece) {
  uint64_t key[4];
  std::memcpy(key, piece.data(), sizeof key);  // what is behind the piece is cut off below
  const std::size_t n = piece.size();
  const auto mask = [](std::size_t bytes) {
    return bytes >= 8 ? ~uint64_t{0} : (uint64_t{1} << 8 * bytes) - 1;
  };
  key[0] &= mask(n);
  key[1] &= mask(n > 8 ? n - 8 : 0);
  key[2] &= mask(n > 16 ? n - 16 : 0);
  key[3] &= mask(n > 24 ? n - 24 : 0);
  key[3] |= uint64_t{n} << 56;
  uint64_t hash = key[0] * 0x9e3779b97f4a7c15U;
  hash = (hash ^ hash >> 32 ^ key[1]) * 0xc2b2ae3d27d4eb4fU;
  hash = (hash ^ hash >> 32 ^ key[2]) * 0x9e3779b97f4a7c15U;
  hash = (hash ^ hash >> 32 ^ key[3]) * 0xc2b2ae3d27d4eb4fU;
  Entry& entry = entries_[hash >> 40 & (kNumEntries - 1)];
  if (std::memcmp(entry.key, key, sizeof key) == 0) return {entry, true};
  std::memcpy(entry.key, key, sizeof key);
  return {entry, false};
}

void PieceCache::store(Entry& entry, std::span<const int32_t> ids) {
  if (ids.size() > kMaxIds) {
    entry.key[3] = 0;
    return;
  }
  std::copy(ids.begin(), ids.end(), entry.ids);
  entry.num_ids = static_cast<int32_t>(ids.size());
}

}  // namespace reynard::tokenizer
