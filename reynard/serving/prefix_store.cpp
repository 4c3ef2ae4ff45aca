#include "reynard/serving/prefix_store.h"

#include "reynard/attention/cache.h"

#include <algorithm>
#include <utility>

namespace reynard::serving {

namespace {

using attention::kPageTokens;

int64_t num_common(std::span<const int64_t> a, std::span<const int64_t> b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  return end - a.begin();
}

// The longest page end that a state can go back to, at most `length`.
int64_t reusable_length(const models::SequenceState& state, int64_t length) {
  length -= length % kPageTokens;
  while (length > 0 && !state.can_truncate(length)) length -= kPageTokens;
  return length;
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

std::optional<models::SequenceState> PrefixStore::find(std::span<const int64_t> prompt) {
  auto best = entries_.end();
  int64_t longest = 0;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const int64_t common =
        std::min(num_common(entry->tokens, prompt), static_cast<int64_t>(prompt.size()) - 1);
    const int64_t length = reusable_length(entry->state, common);
    if (length <= longest) continue;
    longest = length;
    best = entry;
  }
  if (best == entries_.end()) return {};
  models::SequenceState state = best->state.fork();
  state.truncate(longest);
  entries_.splice(entries_.begin(), entries_, best);
  return state;
}

void PrefixStore::add(std::span<const int64_t> tokens, const models::SequenceState& state) {
  const int64_t length = reusable_length(state, std::ssize(tokens));
  if (max_pages_ == 0 || length == 0) return;
  tokens = tokens.first(length);
  Entry added{.tokens = {tokens.begin(), tokens.end()}, .state = state.fork()};
  added.state.truncate(length);
  added.state.keep_page_ends();
  int64_t num_pages = num_remembered_pages(added.state);
  for_each_page(added.state, [&](int32_t) { ++num_pages; });
  if (num_pages > max_pages_) return;
  // What begins alike is held by the longer one.
  std::erase_if(entries_, [&](Entry& entry) {
    const bool covered = num_common(entry.tokens, tokens) == std::ssize(entry.tokens);
    if (covered) count(entry, -1);
    return covered;
  });
  entries_.push_front(std::move(added));
  count(entries_.front(), 1);
  while (num_pages_ > max_pages_) forget_oldest();
}

bool PrefixStore::forget_oldest() {
  if (entries_.empty()) return false;
  count(entries_.back(), -1);
  entries_.pop_back();
  return true;
}

void PrefixStore::count(Entry& entry, int32_t users) {
  num_pages_ += users * num_remembered_pages(entry.state);
  for_each_page(entry.state, [&](int32_t page) {
    if (page >= std::ssize(users_)) users_.resize(page + 1);
    if (users_[page] > 0) --num_pages_;
    users_[page] += users;
    if (users_[page] > 0) ++num_pages_;
  });
}

}  // namespace reynard::serving
