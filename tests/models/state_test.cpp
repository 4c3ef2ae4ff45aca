// What a state keeps besides pages.

#include "reynard/models/state.h"
#include "reynard/models/decoder.h"
#include "tests/support/tensor_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>
#include <utility>

namespace reynard::models {
namespace {

DecoderConfig config_with_shift() {
  DecoderConfig config;
  config.vocab_size = 16;
  config.hidden_size = 32;
  config.num_layers = 2;
  config.attention.num_heads = 2;
  config.attention.key_shift = true;
  return config;
}

// Carries of the last 32 tokens and of page ends, however the tokens came and after going back; of
// others only the last few.
TEST(SequenceState, CanGoBackToTheLastTokensAndPageEnds) {
  Decoder decoder(config_with_shift(), /*seed=*/1);
  const at::NoGradGuard no_grad;
  SequenceState state(decoder, make_page_pool(decoder));
  const auto read = [&](int64_t tokens) {
    const std::array<SequenceState*, 1> states = {&state};
    decoder.hidden(at::full({tokens}, 3, at::kLong), at::zeros({1}, at::kLong), states);
  };
  const auto expect_kept = [&] {
    const int64_t end = state.length();
    for (int64_t length = 0; length <= end; ++length) {
      const bool can = state.can_truncate(length), is_page_end = length % 64 == 0;
      if (length > end - SequenceState::kCarryTokens || is_page_end) {
        EXPECT_TRUE(can) << length << " of " << end;
      } else if (length <= end - 2 * SequenceState::kCarryTokens) {
        EXPECT_FALSE(can) << length << " of " << end;
      }
    }
  };
  read(100);
  expect_kept();
  for (int i = 0; i < 50; ++i) read(1);
  expect_kept();
  state.truncate(121);
  read(31);
  read(3);
  expect_kept();
  state.truncate(64);
  read(70);
  expect_kept();
}

TEST(SequenceState, ReadsItsGateSumsWithoutKeys) {
  constexpr int64_t kTokens = 640, kHeads = 2, kHeadDim = 16;
  DecoderConfig config = config_with_shift();
  config.attention.forget_gate = ForgetGate::kFull;
  Decoder decoder(config, /*seed=*/1);
  const at::NoGradGuard no_grad;
  SequenceState state(decoder, make_page_pool(decoder));
  const std::array<SequenceState*, 1> states = {&state};
  decoder.hidden(at::full({kTokens}, 3, at::kLong), at::zeros({1}, at::kLong), states);
  at::Tensor sums;
  const int64_t bytes = test::peak_tensor_bytes([&] { sums = state.gate_sums(1); });
  EXPECT_EQ(sums.sizes(), at::IntArrayRef({kHeads, kTokens}));
  EXPECT_LT(sums.max().item<double>(), 0);
  EXPECT_TRUE(sums[0].equal(state.cache(1).gather(0).sums[0]));
  constexpr auto kKeyBytes = static_cast<int64_t>(kTokens * kHeads * kHeadDim * sizeof(float));
  EXPECT_LT(bytes, kKeyBytes);
}

// A window of W sees its own token and W - 1 before it: of 128 tokens read the last one still needs
// the first page where W is 66 and no longer where it is 65.
TEST(SequenceState, PagesLeftOfTheWindowAreFreed) {
  const at::NoGradGuard no_grad;
  for (const auto& [window, freed] : {std::pair{65, 1}, {66, 0}}) {
    DecoderConfig config = config_with_shift();
    config.attention.window = window;
    Decoder decoder(config, /*seed=*/1);
    SequenceState state(decoder, make_page_pool(decoder));
    const std::array<SequenceState*, 1> states = {&state};
    decoder.hidden(at::full({128}, 3, at::kLong), at::zeros({1}, at::kLong), states);
    EXPECT_EQ(decoder.evict(states, /*log_tolerance=*/0), freed * 4) << window;  // layers, heads
  }
}

// Whichever layer it is of.
TEST(SequenceState, ReportsTheLargestShareThatALayerEvicted) {
  Decoder decoder(config_with_shift(), /*seed=*/1);
  const SequenceState state(decoder, make_page_pool(decoder));
  StateSnapshot snapshot = state.snapshot();
  for (const auto& [first, last] : {std::pair{-3.0, -7.0}, {-7.0, -3.0}}) {
    snapshot.layers.front().cache.evicted_share = first;
    snapshot.layers.back().cache.evicted_share = last;
    const auto restored = SequenceState::restore(make_page_pool(decoder), snapshot);
    EXPECT_EQ(restored.cache_use().log_evicted_share, -3.0) << first << ", " << last;
  }
}

TEST(SequenceState, CountsTheBytesOfItsPages) {
  DecoderConfig config = config_with_shift();
  config.attention.num_heads = 4;
  config.attention.num_kv_heads = 2;
  Decoder decoder(config, /*seed=*/1);
  const at::NoGradGuard no_grad;
  SequenceState read(decoder, make_page_pool(decoder));
  const std::array<SequenceState*, 1> states = {&read};
  decoder.hidden(at::full({100}, 3, at::kLong), at::zeros({1}, at::kLong), states);
  const attention::PagePool& pool = *read.cache(0).pool();
  const CacheUse use = read.cache_use();
  const auto all =
      static_cast<int64_t>(pool.keys().nbytes() + pool.values().nbytes() + pool.sums().nbytes());
  EXPECT_EQ(use.page_bytes, all / pool.keys().size(0));
  EXPECT_EQ(use.bytes_kept(), 2 * 2 * 2 * use.page_bytes);  // layers, heads, pages
}

}  // namespace
}  // namespace reynard::models
