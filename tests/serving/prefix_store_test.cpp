#include "reynard/serving/prefix_store.h"

#include "reynard/generation/generator.h"
#include "tests/serving/served.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace reynard::serving {
namespace {

constexpr int64_t kPage = attention::kPageTokens;

struct PrefixStoreTest : testing::Test {
  at::NoGradGuard no_grad;
  models::Decoder decoder = test::byte_decoder();
  generation::Generator generator{decoder, {}};
  int64_t num_heads = decoder.config().num_layers * decoder.config().num_kv_heads();

  static std::vector<int64_t> tokens_of(int64_t length, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> tokens(length);
    for (int64_t& token : tokens) token = 'a' + random() % 26;
    return tokens;
  }
  // A prompt and the token that a text goes on from.
  static std::vector<int64_t> prompt_of(const std::vector<int64_t>& first,
                                        int64_t pages,
                                        int seed) {
    std::vector<int64_t> prompt = first;
    const std::vector<int64_t> then = tokens_of(pages * kPage + 1, static_cast<uint32_t>(seed));
    prompt.insert(prompt.end(), then.begin(), then.end());
    return prompt;
  }
  // Reads what no entry has, and keeps all.
  generation::Sequence kept(PrefixStore& store, const std::vector<int64_t>& prompt) {
    generation::Sequence sequence = generator.start(prompt, {});
    if (auto found = store.find(prompt).state) sequence.adopt(std::move(*found));
    while (!sequence.is_prefilled()) generator.prefill(sequence);
    store.add(std::span(prompt).first(sequence.state().length()), sequence.state());
    return sequence;
  }
  static int64_t found(PrefixStore& store, const std::vector<int64_t>& prompt) {
    const auto state = store.find(prompt).state;
    return state ? state->length() : 0;
  }
};

TEST_F(PrefixStoreTest, OwnTokensAreThoseThatNoTextHolds) {
  PrefixStore store(20 * kPage, num_heads);
  EXPECT_EQ(store.num_own_tokens(), 0);
  const std::vector<int64_t> first = prompt_of({}, 5, 1);
  {
    const generation::Sequence text = kept(store, first);
    EXPECT_EQ(store.num_own_tokens(), 0);
  }
  EXPECT_EQ(store.num_own_tokens(), 5 * kPage);
  const std::vector<int64_t> common(first.begin(), first.begin() + 3 * kPage);
  {
    const generation::Sequence other = kept(store, prompt_of(common, 4, 2));
    EXPECT_EQ(store.num_own_tokens(), 2 * kPage);
  }
  EXPECT_EQ(store.num_own_tokens(), (5 + 4) * kPage);
  store.forget_oldest();
  EXPECT_EQ(store.num_own_tokens(), (3 + 4) * kPage);
  store.forget_oldest();
  store.forget_oldest();
  EXPECT_EQ(store.num_own_tokens(), 0);
}

// Used is what a prompt begins with, and what is read again.
TEST_F(PrefixStoreTest, TheOldestIsTheOneThatWasUnusedForLongest) {
  const std::vector<int64_t> first = prompt_of({}, 3, 1), second = prompt_of({}, 3, 2);
  for (const bool is_read_again : {false, true}) {
    PrefixStore store(20 * kPage, num_heads);
    const generation::Sequence text = kept(store, first);
    kept(store, second);
    if (is_read_again) {
      store.add(std::span(first).first(text.state().length()), text.state());
    } else {
      const std::vector<int64_t> common(first.begin(), first.begin() + 2 * kPage);
      EXPECT_EQ(found(store, prompt_of(common, 1, 3)), 2 * kPage);
    }
    store.forget_oldest();
    EXPECT_EQ(found(store, first), 3 * kPage);
    EXPECT_EQ(found(store, second), 0);
  }
}

// Every search looks at the tokens of each. All 38 would have 78 pages together.
TEST_F(PrefixStoreTest, EntriesThatSharePagesAreLimitedByTheirTokens) {
  constexpr int64_t kCommon = 40, kMost = 80, kEntries = 38, kKept = 16 * kMost / (kCommon + 1);
  static_assert(kKept < kEntries && kCommon + kEntries < kMost);
  PrefixStore store(kMost * kPage, num_heads);
  const std::vector<int64_t> common = tokens_of(kCommon * kPage, 1);
  std::vector<std::vector<int64_t>> prompts;
  for (int i = 0; i < kEntries; ++i) {
    prompts.push_back(prompt_of(common, 1, 2 + i));
    kept(store, prompts.back());
  }
  EXPECT_EQ(store.num_own_tokens(), (kCommon + kKept) * kPage);
  EXPECT_EQ(found(store, prompts.front()), kCommon * kPage);
  EXPECT_EQ(found(store, prompts.back()), (kCommon + 1) * kPage);
}

}  // namespace
}  // namespace reynard::serving
