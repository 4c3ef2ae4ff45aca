#include "reynard/serving/prefix_store.h"

#include "reynard/attention/cache.h"

#include <algorithm>
#include <utility>

namespace reynard::serving {

namespace {

int64_t num_common(std::span<const int64_t> a, std::span<const int64_t> b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  return end - a.begin();
}

// The longest page end that a state can go back to, at most `length`.
int64_t reusable_length(const models::SequenceState& state, int64_t length) {
  length -= length % attention::kPageTokens;
  while (length > 0 && !state.can_truncate(length)) length -= attention::kPageTokens;
  return length;
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
  if (length == 0 || length > max_tokens_) return;
  tokens = tokens.first(length);
  // What begins alike is held by the longer one.
  std::erase_if(entries_, [&](const Entry& entry) {
    const bool covered = num_common(entry.tokens, tokens) == std::ssize(entry.tokens);
    if (covered) num_tokens_ -= std::ssize(entry.tokens);
    return covered;
  });
  while (num_tokens_ + length > max_tokens_ && forget_oldest()) {
  }
  models::SequenceState kept = state.fork();
  kept.truncate(length);
  kept.keep_page_ends();
  entries_.push_front({{tokens.begin(), tokens.end()}, std::move(kept)});
  num_tokens_ += length;
}

bool PrefixStore::forget_oldest() {
  if (entries_.empty()) return false;
  num_tokens_ -= std::ssize(entries_.back().tokens);
  entries_.pop_back();
  return true;
}

}  // namespace reynard::serving
