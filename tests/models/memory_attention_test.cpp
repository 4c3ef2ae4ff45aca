// Memory attention at inference: the published golden and a plain computation of the rule.

#include "reynard/checkpoint/safetensors.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/score.h"
#include "reynard/models/state.h"
#include "reynard/tensor/error.h"
#include "tests/models/longllama.h"
#include "tests/models/plain_memory_model.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/files.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace reynard::models {
namespace {

using test::longllama;
using test::one_sequence;

Decoder memory_decoder(const DecoderConfig& config) {
  Decoder decoder(config, /*seed=*/5);
  test::spread_weights(decoder, 3);
  return decoder;
}

at::Tensor random_tokens(int64_t count) {
  return at::randint(48, {count}, at::kLong);
}

// Contexts of W tokens, one that begins the last `last` tokens, and of W tokens again.
std::vector<int64_t> window_begins(int64_t T, int64_t W, int64_t last_begin) {
  std::vector<int64_t> begins;
  for (int64_t at = 0; at < last_begin; at += W) begins.push_back(at);
  for (int64_t at = last_begin; at < T; at += W) begins.push_back(at);
  return begins;
}

TEST(MemoryAttention, GoldenPrefillAndDecodeAcrossAFlush) {
  REYNARD_NEED_SHARED();
  const auto folder = test::shared_folder() / "goldens" / "longllama";
  const checkpoint::SafetensorsFile golden(folder / "golden.safetensors");
  Decoder decoder = load_model(folder);
  const at::NoGradGuard no_grad;
  const at::Tensor prompts = golden.read("input_ids").to(at::kLong);
  const at::Tensor next = golden.read("decode_input").to(at::kLong);
  const int64_t B = prompts.size(0), T = prompts.size(1);
  const at::Tensor expected = golden.read("logits");
  const at::Tensor decoded = golden.read("decode_logits");
  const auto pool = make_page_pool(decoder);
  const int64_t last = decoder.config().last_context_begin(T);
  ASSERT_EQ(last, 300 - 64);
  for (int64_t b = 0; b < B; ++b) {
    // In one go ...
    const at::Tensor whole = logits(decoder, decoder.hidden(prompts[b], one_sequence()));
    EXPECT_TENSORS_NEAR(whole, expected[b], 1e-4, 0) << "prefill of prompt " << b;
    // ... and with a state, in chunks, then token by token.
    SequenceState state(decoder, pool);
    const std::array states{&state};
    const std::array<int64_t, 5> ends{100, 130, last, 290, T};
    for (const int64_t end : ends) {
      const int64_t begin = state.length();
      const at::Tensor hidden =
          decoder.hidden(prompts[b].narrow(0, begin, end - begin), one_sequence(), states);
      EXPECT_TENSORS_NEAR(
          logits(decoder, hidden), expected[b].narrow(0, begin, end - begin), 1e-4, 0)
          << "chunk from " << begin;
      if (end == last) decoder.start_window(state);
    }
    for (int64_t t = 0; t < next.size(1); ++t) {
      const at::Tensor hidden = decoder.hidden(next[b].narrow(0, t, 1), one_sequence(), states);
      EXPECT_TENSORS_NEAR(logits(decoder, hidden)[0], decoded[b][t], 1e-4, 0) << "step " << t;
    }
    EXPECT_EQ(state.memory(1).size(), last + 128) << "the local context did not leave";
    EXPECT_EQ(state.memory(0).size(), 0) << "layer without a memory";
  }
}

TEST(MemoryAttention, WholeTextsEqualThePlainRule) {
  const at::NoGradGuard no_grad;
  for (const auto& [W, last, G] : std::vector<std::array<int64_t, 3>>{
           {16, 0, 4}, {16, 10, 2}, {7, 7, 1}, {1, 0, 4}, {64, 20, 2}, {200, 0, 2}}) {
    Decoder decoder = memory_decoder(longllama(W, last, G));
    const test::PlainMemoryModel plain(decoder);
    for (const int64_t T : {1, 6, 16, 17, 90}) {
      const at::Tensor tokens = random_tokens(T);
      const auto begins = window_begins(T, W, decoder.config().last_context_begin(T));
      EXPECT_TENSORS_NEAR(decoder.hidden(tokens, one_sequence()),
                          plain.hidden(tokens, begins).to(at::kFloat),
                          2e-5,
                          1e-5)
          << "W " << W << " last " << last << " G " << G << " T " << T;
    }
  }
}

// Prompts of other lengths in the same calls, cut anywhere; then single tokens.
TEST(MemoryAttention, UnequalPromptsWithStatesEqualThePlainRule) {
  Decoder decoder = memory_decoder(longllama(16, 10, 2));
  const test::PlainMemoryModel plain(decoder);
  const auto pool = make_page_pool(decoder);
  const std::array<int64_t, 3> prompts{50, 9, 23};
  const std::array<int64_t, 3> lengths{95, 60, 70};
  std::vector<SequenceState> states;
  std::vector<at::Tensor> tokens, seen(3);
  for (const int64_t length : lengths) {
    states.emplace_back(decoder, pool);
    tokens.push_back(random_tokens(length));
  }
  const auto call = [&](const std::vector<int64_t>& sizes) {
    std::vector<at::Tensor> chunks;
    std::vector<int64_t> offsets, members;
    std::vector<SequenceState*> callers;
    int64_t rows = 0;
    for (std::size_t s = 0; s < 3; ++s) {
      if (sizes[s] == 0) continue;
      chunks.push_back(tokens[s].narrow(0, states[s].length(), sizes[s]));
      offsets.push_back(rows);
      members.push_back(static_cast<int64_t>(s));
      callers.push_back(&states[s]);
      rows += sizes[s];
    }
    const at::Tensor hidden =
        decoder.hidden(at::cat(chunks), at::tensor(offsets, at::kLong), callers);
    for (std::size_t i = 0; i < members.size(); ++i) {
      at::Tensor& all = seen[members[i]];
      const at::Tensor mine = hidden.narrow(0, offsets[i], sizes[members[i]]);
      all = all.defined() ? at::cat({all, mine}) : mine;
    }
  };
  call({33, 0, 13});
  call({7, 0, 0});
  for (const int s : {0, 2}) decoder.start_window(states[s]);
  call({10, 9, 10});
  for (int step = 0; step < 45; ++step) call({1, 1, 1});
  call({0, 6, 2});
  for (int s = 0; s < 3; ++s) {
    const int64_t begin = std::max<int64_t>(prompts[s] - 10, 0);
    EXPECT_TENSORS_NEAR(
        seen[s],
        plain.hidden(tokens[s], window_begins(lengths[s], 16, begin)).to(at::kFloat),
        5e-5,
        1e-5)
        << "sequence " << s;
  }
}

TEST(MemoryAttention, BestKeysEqualThePlainRuleWithAndWithoutStates) {
  DecoderConfig config = longllama(12, 0, 2);
  config.memory.top_k = 5;
  config.vocab_size = 128;
  Decoder decoder = memory_decoder(config);
  const test::PlainMemoryModel plain(decoder);
  const at::NoGradGuard no_grad;
  // Every token once: equal ones have equal keys, of which the search takes the oldest. A fixed
  // draw: in one of two hundred some query's fifth and sixth key differ by less than the rounding
  // of keys that are rotated and turned back, and either is right.
  const at::Tensor tokens =
      at::randperm(128, at::detail::createCPUGenerator(1), at::kLong).narrow(0, 0, 80);
  const at::Tensor expected = plain.hidden(tokens, window_begins(80, 12, 0)).to(at::kFloat);
  EXPECT_TENSORS_NEAR(decoder.hidden(tokens, one_sequence()), expected, 5e-5, 1e-5);
  SequenceState state(decoder, make_page_pool(decoder));
  const std::array states{&state};
  for (const int64_t end : {30, 31, 32, 60, 80}) {
    const int64_t begin = state.length();
    EXPECT_TENSORS_NEAR(
        decoder.hidden(tokens.narrow(0, begin, end - begin), one_sequence(), states),
        expected.narrow(0, begin, end - begin),
        5e-5,
        1e-5);
  }
}

TEST(MemoryAttention, CapacityKeepsTheNewest) {
  DecoderConfig config = longllama(8, 0, 4);
  config.num_layers = 1;  // with more, what a key saw depends on the capacity too
  config.memory.layers = {0};
  config.memory.capacity = 20;
  Decoder bounded = memory_decoder(config);
  const at::NoGradGuard no_grad;
  at::Tensor tokens = random_tokens(64);
  const at::Tensor before = bounded.hidden(tokens, one_sequence());
  SequenceState state(bounded, make_page_pool(bounded));
  const std::array states{&state};
  EXPECT_TENSORS_NEAR(bounded.hidden(tokens, one_sequence(), states), before, 2e-5, 1e-5);
  EXPECT_EQ(state.memory(0).size(), 20);
  // The last context, from 56 on, sees 36 to 55.
  for (const auto& [changed, seen] : {std::pair{35, false}, std::pair{36, true}}) {
    tokens[changed] = (tokens[changed] + 1) % 48;
    const at::Tensor after = bounded.hidden(tokens, one_sequence());
    const double moved = (after - before).narrow(0, 56, 8).abs().max().item<double>();
    EXPECT_EQ(moved > 1e-6, seen) << changed << " moved it by " << moved;
  }
}

TEST(MemoryAttention, WithoutAMemoryContextsSeeNothingOfEachOther) {
  Decoder decoder = memory_decoder(longllama(16, 0, 2));
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = random_tokens(45);
  const at::Tensor whole = decoder.hidden(tokens, one_sequence());
  decoder.set_memory_limits(Decoder::kNoMemory, 0);
  const at::Tensor offsets = at::arange(0, 45, 16, at::kLong);
  const at::Tensor alone = decoder.hidden(tokens, offsets);
  EXPECT_TENSORS_NEAR(decoder.hidden(tokens, one_sequence()), alone, 2e-5, 1e-5);
  EXPECT_GT((whole - alone).abs().max().item<double>(), 1e-3);
  SequenceState state(decoder, make_page_pool(decoder));
  const std::array states{&state};
  decoder.remember(tokens.narrow(0, 0, 16), state);
  EXPECT_TENSORS_NEAR(decoder.hidden(tokens.narrow(0, 16, 29), one_sequence(), states),
                      alone.narrow(0, 16, 29),
                      2e-5,
                      1e-5);
  EXPECT_EQ(state.memory(0).size(), 0);
  decoder.set_memory_limits(0, 0);
  EXPECT_TENSORS_NEAR(decoder.hidden(tokens, one_sequence()), whole, 2e-5, 1e-5);
}

// Contexts that are only remembered leave the state that reading them does, with one memory layer
// (computed alone), with two, and with token shifts: the memory in the first layer, within and in
// the last one. Both begin in an open context.
TEST(MemoryAttention, RememberedContextsAreThoseThatWereRead) {
  const at::NoGradGuard no_grad;
  for (const std::string kind : {"one",
                                 "two",
                                 "shift",
                                 "shift_first",
                                 "shift_behind",
                                 "shift_last",
                                 "shift_no_memory",
                                 "best",
                                 "capacity",
                                 "gates",
                                 "decays"}) {
    DecoderConfig config = longllama(16, 0, 2);
    if (kind.starts_with("shift_")) config.num_layers = 4;
    const int64_t last = config.num_layers - 1;
    const int64_t layer = kind == "shift_first" ? 0 : kind == "shift_last" ? last : 1;
    if (kind != "two") config.memory.layers = {layer};
    config.memory.positions = kind != "best";
    config.attention.key_shift = kind.starts_with("shift");
    config.attention.value_shift = kind.starts_with("shift_");
    if (kind == "best") config.memory.top_k = 5;
    if (kind == "capacity") config.memory.capacity = 20;
    if (kind == "gates" || kind == "decays") config.attention.forget_gate = ForgetGate::kFull;
    if (kind == "decays") config.memory.decay = MemoryDecay::kDistance;
    Decoder decoder = memory_decoder(config);
    if (kind == "shift_no_memory") decoder.set_memory_limits(Decoder::kNoMemory, 0);
    const at::Tensor tokens = random_tokens(160);
    SequenceState read(decoder, make_page_pool(decoder)), state(decoder, make_page_pool(decoder));
    const auto read_on = [&](SequenceState& to, int64_t begin, int64_t size) {
      return decoder.hidden(tokens.narrow(0, begin, size), one_sequence(), std::array{&to});
    };
    read_on(read, 0, 5);
    read_on(state, 0, 5);
    decoder.start_window(read);
    read_on(read, 5, 140);
    decoder.start_window(read);
    state.expect(160);
    decoder.remember(tokens.narrow(0, 5, 80), state);
    decoder.remember(tokens.narrow(0, 85, 60), state);
    EXPECT_EQ(state.length(), 145);
    EXPECT_EQ(state.window_length(), 0);
    const int64_t size = kind == "capacity" ? 20 : kind == "shift_no_memory" ? 0 : 145;
    EXPECT_EQ(state.memory(kind == "two" ? 0 : layer).size(), size) << kind;
    EXPECT_TENSORS_NEAR(read_on(state, 145, 15), read_on(read, 145, 15), 5e-5, 1e-5) << kind;
  }
}

TEST(MemoryAttention, WhatCannotBeRememberedLeavesTheState) {
  DecoderConfig config = longllama(16, 0, 2);
  config.memory.layers = {1};
  config.attention.key_shift = true;
  Decoder decoder = memory_decoder(config);
  SequenceState state(decoder, make_page_pool(decoder));
  at::Tensor tokens = random_tokens(60);
  tokens[55] = 48;
  EXPECT_THROW(decoder.remember(tokens, state), Error);
  EXPECT_THROW(decoder.remember(tokens.narrow(0, 0, 0), state), Error);
  EXPECT_EQ(state.length(), 0);
  EXPECT_EQ(state.memory(1).size(), 0);
}

// The keys that an observer is shown of every context, and as the memory has them.
TEST(MemoryAttention, ObserversSeeTheKeysOfTheMemory) {
  struct Recorder final : Observer {
    bool wants(int64_t layer) override { return layer == 0; }
    void attention(int64_t, const AttentionView& shown) override { view = shown; }
    AttentionView view;
  } recorder;
  const at::NoGradGuard no_grad;
  constexpr int64_t kTokens = 40;
  DecoderConfig config = longllama(16, 0, 2);
  Decoder decoder = memory_decoder(config);
  const at::Tensor tokens = random_tokens(kTokens);
  decoder.hidden(tokens, one_sequence(), {}, {.observer = &recorder});
  const AttentionView whole = recorder.view;
  EXPECT_EQ(whole.first_key.max().item<int32_t>(), 0);
  // Without anything before it, a context has the same local keys ...
  for (const int64_t begin : {0, 16, 32}) {
    const int64_t size = std::min<int64_t>(16, kTokens - begin);
    EXPECT_EQ(whole.first_local[begin].item<int32_t>(), begin);
    EXPECT_EQ(whole.first_local[begin + size - 1].item<int32_t>(), begin);
    decoder.hidden(tokens.narrow(0, begin, size), one_sequence(), {}, {.observer = &recorder});
    EXPECT_FALSE(recorder.view.memory_k.defined());
    EXPECT_TENSORS_NEAR(whole.k.narrow(0, begin, size), recorder.view.k, 1e-6, 0) << begin;
  }
  // ... and in the memory a token's key is that of a first token, at position 0.
  for (const int64_t t : {3, 20, 31}) {
    decoder.hidden(tokens.narrow(0, t, 1), one_sequence(), {}, {.observer = &recorder});
    EXPECT_TENSORS_NEAR(whole.memory_k.narrow(0, t, 1), recorder.view.k, 1e-6, 0) << t;
  }
  // Without positions the memory has the keys that the contexts have.
  config.memory.positions = false;
  Decoder without = memory_decoder(config);
  without.hidden(tokens, one_sequence(), {}, {.observer = &recorder});
  EXPECT_FALSE(recorder.view.memory_k.defined());
  EXPECT_TRUE(recorder.view.first_local.defined());
}

// Nothing is pruned without a tolerance, whether or not the gates stop at a context's begin. With
// one it is not known how much is, but in the layer without a memory.
TEST(MemoryAttention, ObserversOfLayersWithAMemoryAreNotToldWhatIsPruned) {
  struct Counter final : Observer {
    bool wants(int64_t) override { return true; }
    void attention(int64_t layer, const AttentionView& view) override {
      for (const double share : pruned_tiles(view)) {
        EXPECT_EQ(std::isnan(share), unknown.contains(layer)) << layer;
        if (!unknown.contains(layer)) {
          EXPECT_EQ(share, 0);
        }
      }
      ++layers;
    }
    int layers = 0;
    std::set<int64_t> unknown;
  };
  const at::NoGradGuard no_grad;
  for (const auto& [gate, log_tolerance] :
       {std::pair{ForgetGate::kNone, 0.0}, {ForgetGate::kFull, 0.0}, {ForgetGate::kFull, -10.0}}) {
    DecoderConfig config = longllama(16, 0, 2);
    config.attention.forget_gate = gate;
    config.attention.log_pruning_tolerance = log_tolerance;
    Decoder decoder = memory_decoder(config);
    Counter counter;
    if (log_tolerance < 0) counter.unknown = {0, 2};
    ForwardOptions options;
    options.observer = &counter;
    decoder.hidden(random_tokens(40), one_sequence(), {}, options);
    EXPECT_EQ(counter.layers, config.num_layers);
  }
}

TEST(MemoryAttention, ForksShareAMemoryAndGoTheirOwnWays) {
  Decoder decoder = memory_decoder(longllama(16, 0, 2));
  const at::Tensor tokens = random_tokens(60);
  const at::Tensor full = decoder.hidden(tokens, one_sequence()).detach();
  SequenceState state(decoder, make_page_pool(decoder));
  decoder.hidden(tokens.narrow(0, 0, 40), one_sequence(), std::array{&state});
  SequenceState fork = state.fork();
  decoder.hidden(random_tokens(30), one_sequence(), std::array{&fork});
  EXPECT_EQ(fork.memory(0).size(), 64);
  EXPECT_EQ(state.memory(0).size(), 32);
  EXPECT_FALSE(state.can_truncate(31)) << "its context has left";
  EXPECT_TRUE(state.can_truncate(33));
  const at::Tensor rest =
      decoder.hidden(tokens.narrow(0, 40, 20), one_sequence(), std::array{&state});
  EXPECT_TENSORS_NEAR(rest, full.narrow(0, 40, 20), 5e-5, 1e-5);
}

// Layers with a memory count a factor above the largest as the largest, and do not train it.
TEST(MemoryAttention, TemperaturesAreBoundedInLayersWithAMemory) {
  DecoderConfig config = longllama(16, 8, 2);  // layers 0 and 2 have a memory
  config.attention.qk_norm = QKNorm::kTemperature;
  config.memory.temperature_max = 2;
  const at::Tensor tokens = random_tokens(70);
  // Logits and the gradients of the factors, all of them `memory` or `local` at first.
  const auto with_factors = [&](double memory, double local, double largest) {
    DecoderConfig own = config;
    own.memory.temperature_max = largest;
    Decoder decoder = memory_decoder(own);
    std::map<std::string, at::Tensor> factors;
    decoder.parameters([&](const std::string& name, Parameter& parameter) {
      if (!name.ends_with("attn.temperature")) return;
      const at::NoGradGuard no_grad;
      parameter.value.fill_(name.find("layers.1.") == std::string::npos ? memory : local);
      factors[name] = parameter.value;
    });
    const at::Tensor hidden = decoder.hidden(tokens, one_sequence());
    hidden.square().sum().backward();
    EXPECT_EQ(factors.size(), 3);
    return std::pair(hidden.detach(), factors);
  };
  const auto [bounded, factors] = with_factors(3, 3, 2);
  EXPECT_BITWISE_EQUAL(bounded, with_factors(2, 3, 0).first);
  EXPECT_FALSE(test::bitwise_equal(bounded, with_factors(3, 3, 0).first));
  for (const auto& [name, factor] : factors) {
    const bool local = name.find("layers.1.") != std::string::npos;
    EXPECT_EQ(factor.grad().abs().max().item<double>() > 0, local) << name;
  }
  for (const auto& [name, factor] : with_factors(1.5, 3, 2).second) {
    EXPECT_GT(factor.grad().abs().max().item<double>(), 0) << name;
  }
}

// One layer, whose queries and keys do not depend on the factor: a context after m tokens is that
// of temperatures ln m / ln n times as large.
TEST(MemoryAttention, LogitsGrowWithTheLogarithmOfTheMemory) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kTokens = 70, kWindow = 16, kKeys = 20;
  DecoderConfig config = longllama(kWindow, 0, 2);
  config.num_layers = 1;
  config.memory.layers = {0};
  config.attention.qk_norm = QKNorm::kTemperature;
  const auto decoder = [&](double temperature, int64_t log_scale_keys) {
    config.memory.log_scale_keys = log_scale_keys;
    Decoder made = memory_decoder(config);
    made.parameters([&](const std::string& name, Parameter& parameter) {
      if (name.ends_with("attn.temperature")) parameter.value.fill_(temperature);
    });
    return made;
  };
  const at::Tensor tokens = random_tokens(kTokens);
  std::vector<at::Tensor> contexts;
  for (int64_t m = 0; m < kTokens; m += kWindow) {
    const double factor = m > kKeys ? std::log(double(m)) / std::log(double(kKeys)) : 1;
    const at::Tensor hidden = decoder(2 * factor, 0).hidden(tokens, one_sequence());
    contexts.push_back(hidden.narrow(0, m, std::min(kWindow, kTokens - m)));
  }
  const at::Tensor expected = at::cat(contexts);
  const at::Tensor unscaled = decoder(2, 0).hidden(tokens, one_sequence());
  EXPECT_GT((unscaled - expected).abs().max().item<double>(), 1e-2) << "no factor matters here";

  Decoder scaled = decoder(2, kKeys);
  EXPECT_TENSORS_NEAR(scaled.hidden(tokens, one_sequence()), expected, 5e-5, 1e-5);
  // Two states with memories of 48 and 16 tokens in one call, then over the ends of contexts.
  const auto pool = make_page_pool(scaled);
  SequenceState state(scaled, pool), other(scaled, pool);
  scaled.hidden(tokens.narrow(0, 0, 50), one_sequence(), std::array{&state});
  scaled.hidden(tokens.narrow(0, 0, 20), one_sequence(), std::array{&other});
  const at::Tensor both =
      scaled.hidden(at::cat({tokens.narrow(0, 50, 10), tokens.narrow(0, 20, 9)}),
                    at::tensor({0, 10}, at::kLong),
                    std::array{&state, &other});
  EXPECT_TENSORS_NEAR(both.narrow(0, 0, 10), expected.narrow(0, 50, 10), 5e-5, 1e-5);
  EXPECT_TENSORS_NEAR(both.narrow(0, 10, 9), expected.narrow(0, 20, 9), 5e-5, 1e-5);
  const at::Tensor rest =
      scaled.hidden(tokens.narrow(0, 29, kTokens - 29), one_sequence(), std::array{&other});
  EXPECT_TENSORS_NEAR(rest, expected.narrow(0, 29, kTokens - 29), 5e-5, 1e-5);
}

}  // namespace
}  // namespace reynard::models
