// What a state keeps besides pages.

#include "reynard/models/state.h"
#include "reynard/models/decoder.h"
#include "tests/support/tensor_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <array>

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

}  // namespace
}  // namespace reynard::models
