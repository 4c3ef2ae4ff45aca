// What the engine reuses of prompts that begin alike, and what that holds of the cache.

#include "tests/serving/engine_jobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <random>
#include <string>
#include <vector>

namespace {

// Blocks of this size are one too many; 0: none are.
std::atomic<std::size_t> refused_bytes = 0;
std::atomic<int64_t> num_refused = 0;

}  // namespace

// Of the whole program; inlined they would look mismatched.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* block =
      bytes == refused_bytes && bytes > 0 ? nullptr : std::malloc(std::max<std::size_t>(bytes, 1));
  if (block) return block;
  ++num_refused;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return std::malloc(std::max<std::size_t>(bytes, 1));
}
[[gnu::noinline]] void operator delete(void* block) noexcept {
  std::free(block);
}
[[gnu::noinline]] void operator delete(void* block, std::size_t /*bytes*/) noexcept {
  std::free(block);
}

namespace reynard::serving {
namespace {

TEST_F(EngineTest, PromptsThatBeginAlikeShareTheirPages) {
  const std::string beginning(300, 'x');
  Engine plain(decoder, tokenizer, {});
  const std::string expected = collect(*plain.submit(job_of(beginning + "yz", 20)), 1).texts[0];
  Engine engine(decoder, tokenizer, {.max_prefix_tokens = 2000});
  EXPECT_EQ(collect(*engine.submit(job_of(beginning + "a", 5)), 1).reused, 0);
  engine.wait_until_idle();
  EXPECT_GT(engine.counters().cache_pages, 0);
  // Of two texts that share their prompt the first one says what it reused.
  Job twice = job_of(beginning + "yz", 20);
  twice.texts_per_prompt = 2;
  const Collected second = collect(*engine.submit(twice), 2);
  EXPECT_EQ(second.reused, 256);
  EXPECT_EQ(second.texts[0], expected);
  // Prompts that are scored are read whole.
  Job scored = job_of(beginning + "yz", 1);
  scored.options.prompt_scores.logprobs = true;
  EXPECT_EQ(collect(*engine.submit(scored), 1).reused, 0);
}

// Models that free pages while they read and write: with heads that remember a few tokens and
// others that remember hundreds, or with a window.
struct FreeingEngineTest : testing::TestWithParam<const char*> {
  static constexpr int64_t kHeads = 2 * 4;  // of both layers
  models::Decoder decoder = freeing_decoder(GetParam());
  tokenizer::ByteTokenizer tokenizer;

  static models::Decoder freeing_decoder(const std::string& name) {
    models::DecoderConfig config = test::small_config();
    config.vocab_size = tokenizer::ByteTokenizer::kVocabSize;
    config.attention.key_shift = true;
    if (name == "Window") {
      config.attention.window = 100;
    } else {
      config.attention.qk_norm = models::QKNorm::kPerHead;
      config.attention.decay_time_min = 4;
      config.attention.decay_time_max = 400;
      config.attention.log_pruning_tolerance = -10;
    }
    return models::Decoder(config, /*seed=*/3, test::test_device());
  }
  static std::vector<int64_t> tokens_of(int64_t length, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> tokens(length);
    for (int64_t& token : tokens) token = 'a' + random() % 26;
    return tokens;
  }
  static std::vector<int64_t> joined(std::vector<int64_t> first, const std::vector<int64_t>& then) {
    first.insert(first.end(), then.begin(), then.end());
    return first;
  }
  static Collected answer(Engine& engine, const std::vector<int64_t>& prompt, int64_t max_tokens) {
    Job job;
    job.prompts = {prompt};
    job.options.max_tokens = max_tokens;
    Collected answer = collect(*engine.submit(job), 1);
    engine.wait_until_idle();
    EXPECT_EQ(answer.error, "");
    return answer;
  }
  // Of the prompt, whose text must be that of an engine that has read nothing.
  int64_t reused(Engine& engine, const std::vector<int64_t>& prompt) {
    const Collected got = answer(engine, prompt, 20);
    Engine fresh(decoder, tokenizer, {});
    EXPECT_EQ(got.tokens, answer(fresh, prompt, 20).tokens);
    return got.reused;
  }
};

INSTANTIATE_TEST_SUITE_P(Models, FreeingEngineTest, testing::Values("ForgetGates", "Window"));

TEST_P(FreeingEngineTest, TheNextTurnGoesOnFromTheLast) {
  for (const int64_t length : {700, 720, 740, 760}) {
    SCOPED_TRACE(length);
    Engine engine(decoder, tokenizer, {.max_prefix_tokens = 4000});
    const std::vector<int64_t> prompt = tokens_of(length, 1);
    const std::vector<int64_t> written = answer(engine, prompt, 45).tokens;
    EXPECT_GT(engine.counters().evicted_pages, 0);
    // The newest token is not in the state.
    const int64_t read = length + 44;
    EXPECT_EQ(reused(engine, joined(joined(prompt, written), tokens_of(50, 2))), read / 64 * 64);
  }
}

TEST_P(FreeingEngineTest, APromptIsReadOnce) {
  for (const int64_t length : {100, 700, 740, 1500}) {
    SCOPED_TRACE(length);
    Engine engine(decoder, tokenizer, {.max_prefix_tokens = 4000});
    const std::vector<int64_t> prompt = tokens_of(length, 1);
    answer(engine, prompt, 200);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(reused(engine, prompt), (length - 1) / 64 * 64);
  }
}

TEST_P(FreeingEngineTest, PromptsThatBeginAlikeShareTheirPages) {
  for (const int64_t common : {130, 300, 900, 2000}) {
    SCOPED_TRACE(common);
    Engine engine(decoder, tokenizer, {.max_prefix_tokens = 8000});
    const std::vector<int64_t> beginning = tokens_of(common, 1);
    answer(engine, joined(beginning, tokens_of(700, 2)), 100);
    for (const uint32_t other : {3, 4}) {
      EXPECT_EQ(reused(engine, joined(beginning, tokens_of(90, other))), common / 64 * 64);
    }
  }
}

// Of a long prompt fewer states are kept; where another has parted from it there is one.
TEST_P(FreeingEngineTest, LongPromptsShareMostAtFirstAndThenAll) {
  constexpr int64_t kCommon = 9000;
  Engine engine(decoder, tokenizer, {.max_prefix_tokens = 30000});
  const std::vector<int64_t> beginning = tokens_of(kCommon, 1);
  answer(engine, joined(beginning, tokens_of(2000, 2)), 10);
  const int64_t most = kCommon / 64 * 64;
  const int64_t second = reused(engine, joined(beginning, tokens_of(1500, 3)));
  EXPECT_GE(second, kCommon * 8 / 9);
  EXPECT_LT(second, most);
  EXPECT_EQ(reused(engine, joined(beginning, tokens_of(90, 4))), most);
}

// Those of a prompt are freed once for all its texts.
TEST_P(FreeingEngineTest, FreedPagesOfAPromptCountOnce) {
  int64_t freed = 0;
  for (const int64_t num_texts : {1, 4}) {
    Engine engine(decoder, tokenizer, {});
    Job job;
    job.prompts = {tokens_of(740, 1)};
    job.options.max_tokens = 2;
    job.texts_per_prompt = num_texts;
    collect(*engine.submit(job), num_texts);
    engine.wait_until_idle();
    if (num_texts == 1) freed = engine.counters().evicted_pages;
    EXPECT_GT(freed, 0);
    EXPECT_EQ(engine.counters().evicted_pages, freed);
  }
}

// The copy of a prompt's whole pages is the only block of that size.
TEST_F(EngineTest, PrefixesGoWhereThereIsNoMemoryToKeepOne) {
  Engine engine(decoder, tokenizer, {.max_prefix_tokens = 4000});
  const auto reused = [&](const std::string& prompt) {
    const Collected read = collect(*engine.submit(job_of(prompt, 3)), 1);
    engine.wait_until_idle();
    EXPECT_EQ(read.error, "");
    return read.reused;
  };
  const std::string kept(150, 'a');
  for (const int64_t expected : {0, 128}) EXPECT_EQ(reused(kept), expected);
  num_refused = 0;
  refused_bytes = 5 * 64 * sizeof(int64_t);
  EXPECT_EQ(reused(std::string(340, 'b')), 0);
  refused_bytes = 0;
  EXPECT_EQ(num_refused, 2) << "where it is read and where its text ends";
  EXPECT_EQ(engine.counters().cache_pages, 0);
  EXPECT_EQ(engine.counters().failed, 0);
  for (const int64_t expected : {0, 128}) EXPECT_EQ(reused(kept), expected);
}

// Texts fit into what prefixes leave, however many states share pages.
TEST_P(FreeingEngineTest, PrefixesStayWithinTheirLimit) {
  Engine engine(decoder, tokenizer, {.max_cache_tokens = 64 * 30, .max_prefix_tokens = 64 * 18});
  for (uint32_t i = 0; i < 12; ++i) {
    answer(engine, joined(tokens_of(300, i % 3), tokens_of(400 + 50 * i, i)), 100);
    EXPECT_GT(engine.counters().cache_pages, 0);
    EXPECT_LE(engine.counters().cache_pages, 18 * kHeads);
  }
}

TEST_F(EngineTest, APromptIsSharedWhileItsTextIsWritten) {
  Engine engine(decoder, tokenizer, {.max_prefix_tokens = 2000});
  const std::string prompt(300, 'x');
  const auto endless = engine.submit(job_of(prompt, 1'000'000));
  ASSERT_TRUE(endless->next(kPatience));
  EXPECT_EQ(collect(*engine.submit(job_of(prompt, 5)), 1).reused, 256);
  endless->cancel();
}

// What was read of its prompt stays; what it wrote goes.
TEST_F(EngineTest, OfACancelledTextThePromptAloneIsKept) {
  Engine engine(decoder, tokenizer, {.max_prefix_tokens = 2000});
  const std::string prompt(130, 'x');
  const auto cancelled = engine.submit(job_of(prompt, 1'000'000));
  for (int64_t written = 0; written <= 128;) {
    const auto piece = cancelled->next(kPatience);
    ASSERT_TRUE(piece);
    written += std::ssize(piece->tokens);
  }
  cancelled->cancel();
  engine.wait_until_idle();
  EXPECT_EQ(engine.counters().cache_pages, 2 * 4 * 2);  // pages of each head of each layer
  EXPECT_EQ(collect(*engine.submit(job_of(prompt + "y", 1)), 1).reused, 128);
}

// A prompt of ten pages that was read, and what a second reading of it reuses.
struct FullCacheTest : EngineTest {
  const std::string prompt = std::string(639, 'd') + "?";
  Engine engine{decoder, tokenizer, {.max_cache_tokens = 64 * 40, .max_prefix_tokens = 64 * 20}};

  FullCacheTest() {
    collect(*engine.submit(job_of(prompt, 2)), 1);
    engine.wait_until_idle();
  }
  int64_t reused() { return collect(*engine.submit(job_of(prompt, 2)), 1).reused; }
};

// Pages of a prompt that is kept are set aside for its text while it is written.
TEST_F(FullCacheTest, PagesOfARunningTextCountOnce) {
  const auto running = engine.submit(job_of(std::string(10 * 64, 'a'), 64 * 3));
  ASSERT_TRUE(running->next(kPatience));
  EXPECT_EQ(reused(), 576);
  EXPECT_FALSE(running->is_done()) << "it ended too early";
  running->cancel();
}

TEST_F(EngineTest, PrefixesGoWhereATextNeedsTheirPages) {
  Engine engine(decoder, tokenizer, {.max_cache_tokens = 64 * 12, .max_prefix_tokens = 64 * 6});
  collect(*engine.submit(job_of(std::string(64 * 5, 'd'), 1)), 1);
  engine.wait_until_idle();
  EXPECT_GT(engine.counters().cache_pages, 0);
  EXPECT_EQ(collect(*engine.submit(job_of("a", 64 * 8)), 1).error, "");
}

TEST_F(FullCacheTest, PrefixesStayWhileATextWaitsForOthers) {
  const auto running = engine.submit(job_of("a", 64 * 25)),
             waiting = engine.submit(job_of("b", 64 * 20));
  ASSERT_TRUE(running->next(kPatience));
  EXPECT_EQ(engine.counters().waiting, 1);
  running->cancel();
  ASSERT_TRUE(waiting->next(kPatience));
  waiting->cancel();
  engine.wait_until_idle();
  EXPECT_EQ(reused(), 576);
}

TEST_F(EngineTest, OldPrefixesAreForgotten) {
  Engine engine(decoder, tokenizer, {.max_prefix_tokens = 400});
  for (int i = 0; i < 6; ++i) {
    collect(*engine.submit(job_of(std::string(128, static_cast<char>('a' + i)), 2)), 1);
  }
  engine.wait_until_idle();
  // The whole pages of three texts of 129 tokens: 2 each for 4 heads of 2 layers.
  EXPECT_EQ(engine.counters().cache_pages, 3 * 2 * 4 * 2);
}

TEST_F(EngineTest, PagesThatPrefixesShareCountOnce) {
  Engine engine(decoder, tokenizer, {.max_prefix_tokens = 64 * 6});
  const std::string beginning(260, 'x');
  const auto reused = [&](char last) {
    const std::string prompt = beginning + std::string(80, last);
    const int64_t reused = collect(*engine.submit(job_of(prompt, 2)), 1).reused;
    engine.wait_until_idle();
    return reused;
  };
  EXPECT_EQ(reused('a'), 0);
  EXPECT_EQ(reused('b'), 256);
  EXPECT_EQ(engine.counters().cache_pages, (4 + 1 + 1) * 4 * 2);
  EXPECT_EQ(reused('a'), 256 + 64);
}

}  // namespace
}  // namespace reynard::serving
