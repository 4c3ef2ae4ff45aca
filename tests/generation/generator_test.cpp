#include "reynard/generation/generator.h"

#include "reynard/models/decoder.h"
#include "reynard/models/score.h"
#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/decoder_variants.h"
#include "tests/support/device.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

namespace reynard::generation {
namespace {

struct OneThread : testing::Environment {
  void SetUp() override { at::set_num_threads(1); }
};
[[maybe_unused]] const auto* const one_thread = testing::AddGlobalTestEnvironment(new OneThread);

models::DecoderConfig small_config() {
  models::DecoderConfig config;
  config.vocab_size = 40;
  config.hidden_size = 32;
  config.num_layers = 2;
  config.initializer_range = 0.3;
  config.attention.num_heads = 2;
  config.attention.key_shift = true;
  return config;
}

std::vector<int64_t> random_prompt(int64_t vocabulary, int64_t length) {
  const at::Tensor ids = at::randint(vocabulary, {length}, at::kLong);
  const auto* first = ids.const_data_ptr<int64_t>();
  return {first, first + length};
}

std::vector<int64_t> tokens_of(const Sequence& sequence) {
  std::vector<int64_t> tokens;
  for (const ScoredToken& written : sequence.written()) tokens.push_back(written.token);
  return tokens;
}

// Until all are finished: prompts chunk by chunk in turn, texts together.
void run(Generator& generator, std::vector<Sequence>& sequences) {
  while (true) {
    std::vector<Sequence*> ready;
    bool reading = false;
    for (Sequence& sequence : sequences) {
      if (sequence.finished() != FinishReason::kNone) continue;
      generator.prefill(sequence);
      reading |= !sequence.is_prefilled();
      if (sequence.is_prefilled()) ready.push_back(&sequence);
    }
    if (!reading && ready.empty()) return;
    generator.step(ready);
  }
}

std::vector<int64_t> run_alone(models::Decoder& decoder,
                               const std::vector<int64_t>& prompt,
                               const SequenceOptions& options,
                               const GeneratorOptions& generator_options = {}) {
  Generator generator(decoder, generator_options);
  std::vector<Sequence> one;
  one.push_back(generator.start(prompt, options));
  run(generator, one);
  return tokens_of(one[0]);
}

std::vector<int64_t> text_after(models::Decoder& decoder,
                                const std::vector<int64_t>& prompt,
                                const SequenceOptions& options) {
  const Prompt one{prompt, options};
  return generate(decoder, {&one, 1}).front();
}

TEST(Generate, IsDeterministicAndStops) {
  models::Decoder decoder(small_config(), 1, test::test_device());
  const std::vector<int64_t> prompt{1, 2, 3};
  const std::vector<int64_t> text = text_after(decoder, prompt, {.max_tokens = 12});
  EXPECT_EQ(text.size(), 12);
  EXPECT_EQ(text_after(decoder, prompt, {.max_tokens = 12}), text);

  const int64_t stop = text[4];
  const auto first = std::find(text.begin(), text.end(), stop);
  EXPECT_EQ(text_after(decoder, prompt, {.max_tokens = 12, .stop = {stop}}),
            std::vector<int64_t>(text.begin(), first));
}

// Line ends, say: those at the beginning are text.
TEST(Generate, SomeIdsStopOnlyBehindOthers) {
  models::Decoder decoder(small_config(), 1, test::test_device());
  const std::vector<int64_t> prompt{1, 2, 3};
  const std::vector<int64_t> text = text_after(decoder, prompt, {.max_tokens = 12});
  const auto other = std::ranges::find_if(text, [&](int64_t id) { return id != text[0]; });
  ASSERT_NE(other, text.end());
  SequenceOptions options{.max_tokens = 12};
  options.stop_after_text = {text[0]};
  const auto end = std::find(other, text.end(), text[0]);
  EXPECT_EQ(text_after(decoder, prompt, options), std::vector<int64_t>(text.begin(), end));
  options.stop_after_text = {*other, text[0]};  // none of these is text before another comes
  const auto third =
      std::ranges::find_if(text, [&](int64_t id) { return id != text[0] && id != *other; });
  const auto last =
      std::find_if(third, text.end(), [&](int64_t id) { return id == text[0] || id == *other; });
  EXPECT_EQ(text_after(decoder, prompt, options), std::vector<int64_t>(text.begin(), last));
}

// Greedy text, token by token from the cache, is what whole forwards over all tokens so far choose.
TEST(Generate, CachedStepsAreTheWholeForward) {
  models::Decoder decoder(small_config(), 1, test::test_device());
  std::vector<int64_t> tokens{1, 2, 3};
  const std::vector<int64_t> text = text_after(decoder, tokens, {.max_tokens = 80});
  for (const int64_t token : text) {
    const at::Tensor all = at::tensor(tokens, at::kLong);
    const at::Tensor hidden = decoder.hidden(all, at::zeros({1}, at::kLong));
    const at::Tensor logits = models::logits(decoder, hidden)[-1];
    ASSERT_EQ(logits.argmax().item<int64_t>(), token) << tokens.size();
    tokens.push_back(token);
  }
}

TEST(Generate, RejectsBadRequests) {
  models::Decoder decoder(small_config(), 1, test::test_device());
  const std::vector<int64_t> none;
  const std::vector<int64_t> outside{40};
  const std::vector<int64_t> fine{1};
  EXPECT_THROW(text_after(decoder, none, {}), Error);
  EXPECT_THROW(text_after(decoder, outside, {}), Error);
  EXPECT_THROW(text_after(decoder, fine, {.max_tokens = -1}), Error);
  EXPECT_TRUE(text_after(decoder, fine, {.max_tokens = 0}).empty());
  EXPECT_THROW(Generator(decoder, {.chunk_tokens = 0}), Error);
  const Generator generator(decoder);
  EXPECT_THROW(generator.start(fine, {.lookup_tokens = 32}), Error);
  EXPECT_THROW(generator.start(fine, {.sampler = {.logit_bias = {{40, 1.0}}}}), Error);
  EXPECT_THROW(generator.start(fine, {.scores = {.logprobs = true, .num_top = -1}}), Error);
}

struct EveryVariant : testing::TestWithParam<test::Variant> {
  static models::Decoder make(const models::DecoderConfig& config,
                              at::Device device = test::test_device()) {
    models::Decoder decoder(config, /*seed=*/5, device);
    test::spread_weights(decoder, 3);
    return decoder;
  }
};

// Prompts of any chunk size, beside other prompts: scores are those of the whole forward.
TEST_P(EveryVariant, ChunkedPromptsScoreAsTheWholeForward) {
  const at::NoGradGuard no_grad;
  models::Decoder decoder = make(GetParam().config);
  const int64_t vocabulary = GetParam().config.vocab_size;
  const std::vector<std::vector<int64_t>> prompts = {
      random_prompt(vocabulary, 150), random_prompt(vocabulary, 2), random_prompt(vocabulary, 65)};
  for (const int64_t chunk : {1, 7, 64, 150}) {
    Generator generator(decoder, {.chunk_tokens = chunk});
    std::vector<Sequence> sequences;
    for (const auto& prompt : prompts) {
      sequences.push_back(generator.start(
          prompt,
          {.max_tokens = 3, .scores = {.logprobs = true}, .prompt_scores = {.logprobs = true}}));
    }
    run(generator, sequences);
    for (const Sequence& sequence : sequences) {
      std::vector<int64_t> all = sequence.prompt();
      std::vector<ScoredToken> scored = *sequence.prompt_scores();
      for (const ScoredToken& token : sequence.written()) {
        all.push_back(token.token);
        scored.push_back(token);
      }
      ASSERT_EQ(scored.size(), all.size() - 1);
      const at::Tensor hidden =
          decoder.hidden(at::tensor(all, at::kLong), at::zeros({1}, at::kLong));
      const at::Tensor logprobs = at::log_softmax(models::logits(decoder, hidden), 1);
      for (std::size_t i = 0; i < scored.size(); ++i) {
        const auto row = static_cast<int64_t>(i);
        ASSERT_EQ(scored[i].token, all[i + 1]);
        ASSERT_NEAR(scored[i].logprob, logprobs[row][scored[i].token].item<float>(), 1e-5)
            << "token " << i << " of " << all.size() << ", chunks of " << chunk;
      }
    }
  }
}

// Chunks of a long prompt grow, each from what was read before it, and stay bounded.
TEST(Generator, ChunksOfLongPromptsGrow) {
  models::DecoderConfig config = small_config();
  config.num_layers = 1;
  config.attention.num_kv_heads = 1;
  models::Decoder decoder(config, 1, test::test_device());
  const std::vector<int64_t> prompt = random_prompt(config.vocab_size, 41000);
  const SequenceOptions options{.max_tokens = 1, .scores = {.logprobs = true}};
  Generator generator(decoder);
  std::vector<Sequence> text;
  text.push_back(generator.start(prompt, options));
  std::vector<int64_t> chunks;
  while (!text[0].is_prefilled()) {
    const int64_t before = text[0].num_unread();
    generator.prefill(text[0]);
    chunks.push_back(before - text[0].num_unread());
  }
  EXPECT_EQ(chunks.front(), 512);
  EXPECT_TRUE(std::is_sorted(chunks.begin(), chunks.end() - 1));
  EXPECT_EQ(std::ranges::max(chunks), 4096);
  EXPECT_LT(chunks.size(), 30) << "81 of 512 tokens each";
  run(generator, text);

  Generator whole(decoder, {.chunk_tokens = 41000});
  std::vector<Sequence> same;
  same.push_back(whole.start(prompt, options));
  run(whole, same);
  EXPECT_EQ(tokens_of(text[0]), tokens_of(same[0]));
  EXPECT_NEAR(text[0].written()[0].logprob, same[0].written()[0].logprob, 1e-5);
}

// A row of a left-padded batch is its padding, a sequence of its own, and its text: nothing of the
// padding is seen.
TEST_P(EveryVariant, LeftPaddingChangesNothing) {
  const at::NoGradGuard no_grad;
  models::Decoder decoder = make(GetParam().config);
  const std::vector<int64_t> text = random_prompt(GetParam().config.vocab_size, 30);
  std::vector<int64_t> padded(11, 0);
  padded.insert(padded.end(), text.begin(), text.end());
  const std::vector<int64_t> offsets{0, 11};
  const at::Tensor hidden =
      decoder.hidden(at::tensor(padded, at::kLong), at::tensor(offsets, at::kLong));
  const at::Tensor alone = decoder.hidden(at::tensor(text, at::kLong), at::zeros({1}, at::kLong));
  EXPECT_TENSORS_NEAR(hidden.narrow(0, 11, 30), alone, 2e-5, 1e-5);
}

TEST_P(EveryVariant, GuessingLeavesTheTextAsItIs) {
  models::Decoder decoder = make(GetParam().config);
  std::vector<int64_t> prompt = random_prompt(GetParam().config.vocab_size, 20);
  prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 12);
  for (const double temperature : {0.0, 1.0}) {
    const SequenceOptions plain{.max_tokens = 90,
                                .sampler = {.temperature = temperature, .seed = 5}};
    SequenceOptions guessing = plain;
    guessing.lookup_tokens = 6;
    EXPECT_EQ(run_alone(decoder, prompt, guessing), run_alone(decoder, prompt, plain));
  }
}

// The most probable token is no matter of a device: cache, pages and kernels of a GPU lead to the
// text that the CPU writes, from a prompt in chunks over several pages.
TEST_P(EveryVariant, GreedyTextIsThatOfTheCPU) {
  if (test::test_device().is_cpu()) GTEST_SKIP() << "needs REYNARD_TEST_DEVICE=cuda";
  const std::vector<int64_t> prompt = random_prompt(GetParam().config.vocab_size, 200);
  models::Decoder there = make(GetParam().config), here = make(GetParam().config, at::kCPU);
  const SequenceOptions options{.max_tokens = 100};
  const std::vector<int64_t> text = run_alone(here, prompt, options, {.chunk_tokens = 70});
  EXPECT_EQ(run_alone(there, prompt, options, {.chunk_tokens = 70}), text);
  // With weights that nobody trains steps are recorded.
  there.parameters([](const std::string&, models::Parameter& parameter) {
    parameter.value.requires_grad_(false);
  });
  EXPECT_EQ(run_alone(there, prompt, options, {.chunk_tokens = 70}), text);
}

// What stands before the last token's context is only remembered: no page is taken for it, and the
// text is that of a prompt that was read token by token.
TEST(GeneratorWithMemory, RemembersWholeContextsOfAPrompt) {
  for (const test::Variant& variant : test::memory_variants()) {
    for (const int64_t last_context : {0, 5}) {
      models::DecoderConfig config = variant.config;
      config.memory.last_context = last_context;
      const int64_t W = config.memory.window;
      models::Decoder decoder = EveryVariant::make(config);
      for (const int64_t length : {4 * W + 1, 4 * W, 7 * W - 2}) {
        const std::vector<int64_t> prompt = random_prompt(config.vocab_size, length);
        const SequenceOptions options{.max_tokens = 2 * W};
        const auto logits = [&](const GeneratorOptions& reading) {
          Generator generator(decoder, reading);
          Sequence text = generator.start(prompt, options);
          while (!text.is_prefilled()) generator.prefill(text);
          const std::array<models::SequenceState*, 1> states = {&text.state()};
          return decoder.hidden(
              at::tensor({prompt.back()}, at::kLong), at::zeros({1}, at::kLong), states);
        };
        const at::Tensor one_by_one = logits({.chunk_tokens = 1});
        EXPECT_TENSORS_NEAR(logits({}), one_by_one, 2e-5, 1e-5);
        EXPECT_TENSORS_NEAR(logits({.chunk_tokens = 2 * W + 3}), one_by_one, 2e-5, 1e-5);
        EXPECT_EQ(run_alone(decoder, prompt, options),
                  run_alone(decoder, prompt, options, {.chunk_tokens = 1}));
      }
    }
  }
}

TEST(GeneratorWithMemory, TakesNoPagesForWhatIsOnlyRemembered) {
  const models::DecoderConfig config = test::memory_variants()[0].config;  // of one layer alone
  models::Decoder decoder = EveryVariant::make(config);
  Generator generator(decoder);
  Sequence text = generator.start(random_prompt(config.vocab_size, 4 * config.memory.window + 1),
                                  {.max_tokens = 1});
  while (!text.is_prefilled()) generator.prefill(text);
  EXPECT_EQ(text.state().length(), 4 * config.memory.window);
  EXPECT_EQ(generator.pool()->keys().size(0), 0);
}

INSTANTIATE_TEST_SUITE_P(All,
                         EveryVariant,
                         testing::ValuesIn(test::attention_variants()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Memory,
                         EveryVariant,
                         testing::ValuesIn(test::memory_variants()),
                         [](const auto& info) { return info.param.name; });

TEST(Generator, TextsDoNotDependOnTheirBatch) {
  models::Decoder decoder(small_config(), 1, test::test_device());
  std::vector<std::vector<int64_t>> prompts;
  std::vector<SequenceOptions> options;
  for (int64_t i = 0; i < 6; ++i) {
    prompts.push_back(random_prompt(40, 1 + 13 * i));
    options.push_back({.max_tokens = 20 + 5 * i,
                       .sampler = {.repetition_penalty = 1.1,
                                   .temperature = i % 2 == 0 ? 0.8 : 0.0,
                                   .top_p = 0.9,
                                   .seed = static_cast<uint64_t>(i)}});
  }
  Generator generator(decoder, {.chunk_tokens = 16});
  std::vector<Sequence> batch;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    batch.push_back(generator.start(prompts[i], options[i]));
  }
  run(generator, batch);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(tokens_of(batch[i]), run_alone(decoder, prompts[i], options[i], {.chunk_tokens = 16}))
        << i;
    EXPECT_EQ(batch[i].finished(), FinishReason::kLength);
  }
}

TEST(Generator, ForksAreTextsOfTheirOwn) {
  models::Decoder decoder(small_config(), 1, test::test_device());
  const std::vector<int64_t> prompt = random_prompt(40, 70);
  const SequenceOptions options{.max_tokens = 30, .sampler = {.temperature = 1.5, .seed = 1}};
  Generator generator(decoder);
  Sequence root = generator.start(prompt, options);
  generator.prefill(root);
  std::vector<Sequence> forks;
  for (const uint64_t seed : {1, 2, 3}) forks.push_back(root.fork(seed));
  run(generator, forks);
  for (const uint64_t seed : {1, 2, 3}) {
    SequenceOptions own = options;
    own.sampler.seed = seed;
    EXPECT_EQ(tokens_of(forks[seed - 1]), run_alone(decoder, prompt, own)) << seed;
  }
  EXPECT_NE(tokens_of(forks[0]), tokens_of(forks[1]));
}

TEST(Generator, ForksOfATextWithoutTokensAreFinished) {
  models::Decoder decoder(small_config(), /*seed=*/9);
  Generator generator(decoder);
  const Sequence root = generator.start({1, 2, 3}, {.max_tokens = 0});
  EXPECT_EQ(root.fork(1).finished(), FinishReason::kLength);
}

// Texts of one prompt share its scores; one that was forked before its end reads on for itself.
TEST(Generator, ForksShareTheScoresOfTheirPrompt) {
  models::Decoder decoder(small_config(), 1, test::test_device());
  Generator generator(decoder, {.chunk_tokens = 30});
  Sequence root = generator.start(random_prompt(40, 70), {.prompt_scores = {.logprobs = true}});
  generator.prefill(root);
  Sequence early = root.fork(1);
  EXPECT_EQ(early.prompt_scores()->size(), 30U);
  for (Sequence* text : {&root, &early}) {
    while (!text->is_prefilled()) generator.prefill(*text);
    ASSERT_EQ(text->prompt_scores()->size(), 69U);
  }
  for (std::size_t i = 0; i < 69; ++i) {
    EXPECT_EQ((*early.prompt_scores())[i].logprob, (*root.prompt_scores())[i].logprob) << i;
  }
  EXPECT_EQ(root.fork(2).prompt_scores(), root.prompt_scores());
}

TEST(Generator, PagesGoBackToThePool) {
  models::Decoder decoder(small_config(), 1, test::test_device());
  Generator generator(decoder);
  {
    std::vector<Sequence> texts;
    texts.push_back(generator.start(random_prompt(40, 100), {.max_tokens = 5}));
    run(generator, texts);
    EXPECT_GT(generator.pool()->pages_in_use(), 0);
  }
  EXPECT_EQ(generator.pool()->pages_in_use(), 0);
  Generator tight(decoder, {.max_pages = 4});  // 2 layers of 2 heads: 64 tokens
  Sequence text = tight.start(random_prompt(40, 100), {});
  EXPECT_THROW(tight.prefill(text), Error);
}

TEST(Generator, RepeatedTextIsGuessed) {
  models::Decoder decoder(small_config(), 1, test::test_device());
  // The text that this model writes goes round in circles.
  const std::vector<int64_t> prompt = random_prompt(40, 8);
  Generator generator(decoder);
  std::vector<Sequence> one;
  one.push_back(generator.start(prompt, {.max_tokens = 200, .lookup_tokens = 8}));
  run(generator, one);
  EXPECT_EQ(one[0].written().size(), 200);
  EXPECT_GT(one[0].num_accepted(), 50);
  EXPECT_LE(one[0].num_accepted(), one[0].num_guessed());
}

// Each query sees itself alone: the next token depends on the last one only.
TEST(Generator, RightGuessesAreCounted) {
  models::DecoderConfig config = small_config();
  config.attention.key_shift = false;
  config.attention.window = 1;
  models::Decoder decoder(config, 1, test::test_device());
  std::vector<int64_t> chain;  // of tokens that differ
  for (int64_t first = 0; first < config.vocab_size; ++first) {
    chain = run_alone(decoder, {first}, {.max_tokens = 5});
    if (std::set(chain.begin(), chain.end()).size() == 5) break;
  }
  const int64_t a = chain[0], b = chain[1], c = chain[2], d = chain[3], e = chain[4];
  ASSERT_EQ((std::set{a, b, c, d, e}.size()), 5U);
  struct Case {
    std::vector<int64_t> prompt;  // ends in a token that is in it already
    int64_t max_tokens;
    std::vector<int64_t> stop, written;  // the latter in one step
    int64_t num_guessed, num_right;
  };
  for (const Case& one : {Case{{a, b, c, d, a}, 9, {}, {b, c, d, e}, 3, 3},
                          {{a, b, c, d, a}, 3, {}, {b, c, d}, 2, 2},
                          {{a, b, c, d, a}, 9, {d}, {b, c}, 3, 3},
                          {{a, b, c, e, a}, 9, {d}, {b, c}, 3, 2},
                          {{a, b, e, d, a}, 9, {}, {b, c}, 3, 1},
                          {{a, b, e, d, a}, 9, {b}, {}, 3, 1},
                          {{a, e, c, d, a}, 9, {b}, {}, 3, 0},
                          // The last occurrence, and that of three tokens before that of two.
                          {{a, d, a, b, c, a}, 9, {}, {b, c, d}, 3, 2},
                          {{d, e, a, b, c, e, a, d, d, e, a}, 9, {}, {b, c, d}, 3, 2}}) {
    Generator generator(decoder);
    Sequence text = generator.start(
        one.prompt, {.max_tokens = one.max_tokens, .stop = one.stop, .lookup_tokens = 3});
    generator.prefill(text);
    generator.step(std::array{&text});
    EXPECT_EQ(tokens_of(text), one.written);
    EXPECT_EQ(text.num_guessed(), one.num_guessed);
    EXPECT_EQ(text.num_accepted(), one.num_right);
  }
}

TEST(Generator, TopLogprobsAreOfTheModelsOwnDistribution) {
  models::Decoder decoder(small_config(), 1, test::test_device());
  Generator generator(decoder);
  std::vector<Sequence> one;
  one.push_back(generator.start({1, 2, 3},
                                {.max_tokens = 4,
                                 .sampler = {.logit_bias = {{7, 100.0}}},
                                 .scores = {.logprobs = true, .num_top = 40}}));
  run(generator, one);
  for (const ScoredToken& token : one[0].written()) {
    EXPECT_EQ(token.token, 7);
    ASSERT_EQ(token.top.size(), 40U);
    double total = 0;
    for (const TokenScore& other : token.top) {
      total += std::exp(other.logprob);
      if (other.token == 7) {
        EXPECT_EQ(other.logprob, token.logprob);
      }
    }
    EXPECT_NEAR(total, 1, 1e-5);
    EXPECT_TRUE(std::ranges::is_sorted(token.top, std::greater(), &TokenScore::logprob));
  }
}

}  // namespace
}  // namespace reynard::generation
