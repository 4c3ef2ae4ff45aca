#include "reynard/serving/prefix_store.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace reynard::serving {

namespace {

using attention::kPageTokens;

int64_t num_common(std::span<const int64_t> a, std::span<const int64_t> b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  return end - a.begin();
}

int64_t whole_pages(int64_t tokens) {
  return tokens / kPageTokens * kPageTokens;
}

// The first page end that a state can go back to; it can to all behind.
int64_t shortest_length(const models::SequenceState& state) {
  const auto pages = std::views::iota(int64_t{1}, state.length() / kPageTokens);
  const auto first = std::ranges::partition_point(
      pages, [&](int64_t page) { return !state.can_truncate(page * kPageTokens); });
  return (1 + (first - pages.begin())) * kPageTokens;
}

int64_t num_remembered_pages(models::SequenceState& state) {
  const int64_t remembered = state.length() - state.window_length();
  return remembered / kPageTokens * state.num_layers() * state.cache(0).num_kv_heads();
}

void for_each_page(models::SequenceState& state, const auto& visit) {
  for (int64_t layer = 0; layer < state.num_layers(); ++layer) {
    const attention::LayerCache& cache = state.cache(layer);
    for (int64_t head = 0; head < cache.num_kv_heads(); ++head) {
      for (const int32_t page : cache.pages(head)) {
        if (page >= 0) visit(page);
      }
    }
  }
}

}  // namespace

// Whether all that the other can go back to, this one can too.
bool PrefixStore::Entry::covers(const Entry& other) const {
  return shortest <= other.shortest && num_common(tokens, other.tokens) == std::ssize(other.tokens);
}

PrefixStore::Found PrefixStore::find(std::span<const int64_t> prompt) {
  Found found;
  auto best = entries_.end();
  int64_t longest = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const int64_t common = whole_pages(num_common(entry->tokens, prompt.first(prompt.size() - 1)));
    found.num_common = std::max(found.num_common, common);
    if (common <= longest || !entry->state.can_truncate(common)) continue;
    longest = common;
    best = entry;
  }
  if (best == entries_.end()) return found;
  found.state = best->state.fork();
  found.state->truncate(longest);
  entries_.splice(entries_.begin(), entries_, best);
  return found;
}

void PrefixStore::add(std::span<const int64_t> tokens, const models::SequenceState& state) {
  const int64_t length = whole_pages(std::ssize(tokens));
  if (max_pages_ == 0 || length == 0 || !state.can_truncate(length)) return;
  tokens = tokens.first(length);
  Entry added{.tokens = {tokens.begin(), tokens.end()}, .state = state.fork()};
  added.state.truncate(length);
  added.state.keep_page_ends();
  added.shortest = shortest_length(added.state);
  int64_t num_pages = num_remembered_pages(added.state);
  for_each_page(added.state, [&](int32_t page) {
    ++num_pages;
    // Before anything changes: memory may run out.
    if (page >= std::ssize(users_)) users_.resize(page + 1);
  });
  if (num_pages > max_pages_) return;
  const auto covering =
      std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.covers(added); });
  if (covering != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, covering);
    return;
  }
  std::erase_if(entries_, [&](Entry& entry) {
    const bool covered = added.covers(entry);
    if (covered) count(entry, -1);
    return covered;
  });
  entries_.push_front(std::move(added));
  count(entries_.front(), 1);
  while (num_pages_ > max_pages_ || num_entry_tokens_ > max_entry_tokens_) forget_oldest();
}

void PrefixStore::forget_oldest() {
  if (entries_.empty()) return;
  count(entries_.back(), -1);
  entries_.pop_back();
}

int64_t PrefixStore::num_own_tokens() {
  if (entries_.empty()) return 0;
  const attention::PagePool& pool = *entries_.front().state.cache(0).pool();
  int64_t pages = num_remembered_;
  for (int32_t page = 0; page < std::ssize(users_); ++page) {
    if (users_[page] > 0 && users_[page] == pool.num_users(page)) ++pages;
  }
  return (pages + num_heads_ - 1) / num_heads_ * kPageTokens;
}

void PrefixStore::count(Entry& entry, int32_t change) {
  const int64_t remembered = change * num_remembered_pages(entry.state);
  num_remembered_ += remembered;
  num_pages_ += remembered;
  num_entry_tokens_ += change * std::ssize(entry.tokens);
  for_each_page(entry.state, [&](int32_t page) {
    if (users_[page] > 0) --num_pages_;
    users_[page] += change;
    if (users_[page] > 0) ++num_pages_;
  });
}

}  // namespace reynard::serving
