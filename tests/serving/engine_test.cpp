#include "reynard/serving/engine.h"

#include "reynard/tensor/error.h"
#include "tests/serving/engine_jobs.h"
#include "tests/support/errors.h"
#include "tests/support/eventually.h"
#include "tests/support/tokenizers.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace reynard::serving {
namespace {

using generation::FinishReason;

// Of these bytes: NaN.
void spoil_embeddings(models::Decoder& decoder, const std::vector<char>& bytes) {
  const at::NoGradGuard no_grad;
  decoder.parameters([&](const std::string& name, models::Parameter& parameter) {
    if (name != "model.embeddings.weight") return;
    for (const char byte : bytes) parameter.value.select(0, byte).fill_(std::nan(""));
  });
}

TEST_F(EngineTest, ManyAtOnceWriteWhatEachWritesAlone) {
  std::vector<std::string> prompts;
  for (int i = 0; i < 12; ++i)
    prompts.push_back(std::string(1 + 23 * i, static_cast<char>('a' + i)) + "?");
  std::vector<std::string> alone;
  for (const std::string& prompt : prompts) {
    Engine engine(decoder, tokenizer, {});
    alone.push_back(collect(*engine.submit(job_of(prompt, 30)), 1).texts[0]);
  }
  Engine engine(decoder, tokenizer, {.max_batch = 5});
  std::vector<std::shared_ptr<Reply>> replies;
  for (const std::string& prompt : prompts) replies.push_back(engine.submit(job_of(prompt, 30)));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(collect(*replies[i], 1).texts[0], alone[i]) << i;
  }
  engine.wait_until_idle();
  EXPECT_EQ(engine.counters().finished, 12);
  EXPECT_EQ(engine.counters().running, 0);
  EXPECT_EQ(engine.counters().cache_pages, 0);
}

TEST_F(EngineTest, SeveralPromptsAndTextsKeepTheirPlaces) {
  Engine engine(decoder, tokenizer, {});
  Job job = job_of("first", 12);
  job.prompts.push_back(prompt_of("second"));
  job.texts_per_prompt = 3;
  job.options.sampler.temperature = 1;
  job.options.sampler.seed = 9;
  for (const std::vector<uint64_t>& seeds : {std::vector<uint64_t>{}, {4, 70}}) {
    job.seeds = seeds;
    const Collected together = collect(*engine.submit(job), 6);
    for (int64_t prompt = 0; prompt < 2; ++prompt) {
      for (int64_t text = 0; text < 3; ++text) {
        Job one = job;
        one.prompts = {job.prompts[prompt]};
        one.texts_per_prompt = 1;
        one.seeds = {(seeds.empty() ? 9 : seeds[prompt]) + static_cast<uint64_t>(text)};
        EXPECT_EQ(collect(*engine.submit(one), 1).texts[0], together.texts[prompt * 3 + text]);
      }
    }
  }
}

// What goes on from its prompt keeps the blank that its first word begins with, an answer does not.
TEST(Engine, CompletionsBeginWithTheirBlank) {
  const auto tokenizer = test::sentencepiece_tokenizer();
  const auto ids = tokenizer->encode("the hello");
  ASSERT_EQ(ids.size(), 2U);
  models::DecoderConfig config = test::small_config();
  config.vocab_size = tokenizer->vocab_size();
  models::Decoder decoder(config, /*seed=*/3, test::test_device());
  Engine engine(decoder, *tokenizer, {});
  Job job;
  job.prompts = {{ids[0]}};
  job.options.max_tokens = 2;
  job.options.sampler.logit_bias = {{.token = ids[1], .bias = 1e4}};
  EXPECT_EQ(collect(*engine.submit(job), 1).texts[0], "hello hello");
  job.goes_on = true;
  EXPECT_EQ(collect(*engine.submit(job), 1).texts[0], " hello hello");
}

// Where a prompt's end says what goes to the memory, texts do not depend on what was read before.
TEST(Engine, PromptsWithALastContextAreReadAnew) {
  models::DecoderConfig config = test::small_config();
  config.vocab_size = tokenizer::ByteTokenizer::kVocabSize;
  config.mixer = "memory_attention";
  config.attention.rope = true;
  config.attention.forget_gate = models::ForgetGate::kNone;
  config.memory = {.window = 192, .layers = {1}};
  config.memory.last_context = 160;
  models::Decoder decoder(config, /*seed=*/3, test::test_device());
  test::spread_weights(decoder, 4);
  const tokenizer::ByteTokenizer tokenizer;
  Engine engine(decoder, tokenizer, {.max_prefix_tokens = 4000});
  const std::string beginning = std::string(140, 'x') + "abcdefghijklmnopqrstuvwxyz";
  const auto answer = [&](Engine& asked, std::size_t length, char last) {
    std::string prompt;
    while (prompt.size() < length) prompt += beginning;
    const Collected got = collect(*asked.submit(job_of(prompt.substr(0, length) + last, 8)), 1);
    asked.wait_until_idle();
    return std::pair(got.texts[0], got.reused);
  };
  int64_t reused = 0;
  for (const std::size_t length : {130, 150, 158, 250, 300, 310, 420, 150}) {
    SCOPED_TRACE(length);
    Engine fresh(decoder, tokenizer, {});
    const auto [text, num_reused] = answer(engine, length, '?');
    EXPECT_EQ(text, answer(fresh, length, '?').first);
    reused += num_reused;
    EXPECT_TRUE(length < 160 || num_reused == 0) << num_reused;
  }
  EXPECT_GT(reused, 0) << "short prompts share theirs";
}

// What stands before the last token's context is only remembered, as `generate` does it: beside
// texts that are written too, where a turn reads less than a context.
TEST(Engine, LocalContextsOfAPromptAreOnlyRemembered) {
  constexpr int64_t kWindow = 48;
  models::DecoderConfig config = test::memory_variants()[0].config;  // of one layer alone
  config.vocab_size = tokenizer::ByteTokenizer::kVocabSize;
  config.memory.window = kWindow;
  models::Decoder decoder(config, /*seed=*/3, test::test_device());
  test::spread_weights(decoder, 4);
  const tokenizer::ByteTokenizer tokenizer;
  const auto prompt_of_length = [](int64_t length) {
    std::string prompt;
    for (int64_t i = 0; i < length; ++i) prompt += static_cast<char>('a' + i * i % 23);
    return prompt;
  };
  int64_t remembered = 0;
  const auto generated = [&](const std::string& prompt, int64_t max_tokens) {
    generation::Generator generator(decoder);
    generation::Sequence text = generator.start(prompt_of(prompt), {.max_tokens = max_tokens});
    while (!text.is_prefilled()) generator.prefill(text);
    while (text.finished() == FinishReason::kNone) generator.step(std::array{&text});
    remembered += generator.num_remembered();
    generation::TextStream stream(tokenizer, {});
    std::string all;
    for (const auto& written : text.written()) all += stream.add(written.token);
    return all + stream.finish();
  };
  // The second prompt goes on from a page end in the first one's last context, at 256.
  for (const int64_t turn : {int64_t{16}, 2 * kWindow + 5}) {
    SCOPED_TRACE(turn);
    Engine engine(decoder,
                  tokenizer,
                  {.max_prefix_tokens = 4000, .chunk_tokens = turn, .least_chunk_tokens = 16});
    const auto writing = engine.submit(job_of("abc", 1'000'000));
    ASSERT_TRUE(writing->next(kPatience));
    remembered = 0;
    const std::string first = prompt_of_length(262), second = first + prompt_of_length(240);
    EXPECT_EQ(collect(*engine.submit(job_of(first, 10)), 1).texts[0], generated(first, 10));
    EXPECT_EQ(remembered, 5 * kWindow);
    const Collected longer = collect(*engine.submit(job_of(second, 10)), 1);
    EXPECT_EQ(longer.texts[0], generated(second, 10));
    EXPECT_EQ(longer.reused, 256);
    writing->cancel();
    engine.wait_until_idle();
    EXPECT_EQ(engine.counters().remembered_tokens, (5 + 4) * kWindow);
  }
}

TEST_F(EngineTest, TextsThatShareAPromptCountBeforeItIsRead) {
  Engine engine(decoder, tokenizer, {.max_batch = 5, .chunk_tokens = 8});
  std::vector<std::shared_ptr<Reply>> replies;
  for (int i = 0; i < 3; ++i) {
    Job job = job_of(std::string(200, 'a'), 10);
    job.texts_per_prompt = 4;
    replies.push_back(engine.submit(std::move(job)));
  }
  int64_t most = 0;
  for (const auto& reply : replies) {
    while (!reply->is_done()) {
      reply->next(std::chrono::milliseconds(1));
      most = std::max(most, engine.counters().running.load());
    }
  }
  EXPECT_EQ(most, 4);
}

// The pool has as many pages as the limit says: a text that needed one more would fail.
TEST_F(EngineTest, ReservationsCoverEveryPage) {
  constexpr int64_t kTokens = 64 * 20;
  Engine engine(
      decoder, tokenizer, {.max_batch = 9, .max_cache_tokens = kTokens, .max_prefix_tokens = 640});
  std::vector<std::shared_ptr<Reply>> replies;
  for (int i = 0; i < 8; ++i) {
    Job job = job_of(std::string(1 + 20 * i, 'a'), 20 + i);
    job.texts_per_prompt = 1 + i % 3;
    replies.push_back(engine.submit(std::move(job)));
  }
  for (int i = 0; i < 8; ++i) collect(*replies[i], 1 + i % 3);
  engine.wait_until_idle();
  EXPECT_EQ(engine.counters().failed, 0);
  EXPECT_LE(engine.counters().cache_pages, 20 * 4 * 2);
}

// What the others of its prompt still write stays set aside.
TEST_F(EngineTest, ReservationsHoldWhenTheFirstTextEndsEarly) {
  Job job = job_of(std::string(256, 'a'), 120);
  job.texts_per_prompt = 2;
  job.options.sampler.temperature = 1;
  job.options.sampler.seed = 3;
  {
    Engine unlimited(decoder, tokenizer, {});
    const Collected both = collect(*unlimited.submit(job), 2);
    const auto is_only_in_first = [&](char c) {
      return c > ' ' && both.texts[1].find(c) == std::string::npos;
    };
    const auto stop = std::ranges::find_if(both.texts[0], is_only_in_first);
    ASSERT_LT(stop - both.texts[0].begin(), 60);
    job.stop = {std::string(1, *stop)};
  }
  // Either fits alone: 688 and 584 tokens are set aside for them.
  Engine engine(decoder, tokenizer, {.max_cache_tokens = 64 * 11});
  const auto first = engine.submit(job), second = engine.submit(job_of(std::string(400, 'b'), 120));
  const Collected of_first = collect(*first, 2), of_second = collect(*second, 1);
  EXPECT_EQ(of_first.error + of_second.error, "");
  EXPECT_LT(of_first.texts[0].size(), of_first.texts[1].size());
  engine.wait_until_idle();
  EXPECT_EQ(engine.counters().finished, 3);
  // All is given back.
  EXPECT_EQ(collect(*engine.submit(job_of(std::string(500, 'c'), 120)), 1).error, "");
}

TEST_F(EngineTest, ATextWhoseLogitsAreNotFiniteEndsAlone) {
  spoil_embeddings(decoder, {'!', '?'});
  Engine engine(decoder, tokenizer, {});
  const std::string expected = collect(*engine.submit(job_of("abc", 200)), 1).texts[0];
  const auto running = engine.submit(job_of("abc", 200));
  Job written = job_of("ab!", 5), scored = job_of("a!b", 5), other_scored = job_of("a?b", 5);
  written.texts_per_prompt = 3;
  scored.options.prompt_scores.logprobs = other_scored.options.prompt_scores.logprobs = true;
  const auto first = engine.submit(written), second = engine.submit(scored);
  const auto third = engine.submit(other_scored);
  const auto last = engine.submit(job_of("abc", 200));
  EXPECT_SAYS(collect(*first, 3).error, "sampler: the logit of token 0 is ");
  EXPECT_SAYS(collect(*second, 1).error, "score_tokens: the log-probability of token 33 is ");
  EXPECT_SAYS(collect(*third, 1).error, "score_tokens: the log-probability of token 63 is ");
  for (const auto& other : {running, last}) {
    const Collected collected = collect(*other, 1);
    EXPECT_EQ(collected.error, "");
    EXPECT_EQ(collected.texts[0], expected);
  }
  engine.wait_until_idle();
  EXPECT_EQ(engine.counters().running, 0);
  EXPECT_EQ(engine.counters().failed, 3 + 1 + 1);
  EXPECT_EQ(engine.counters().cancelled, 0);
  EXPECT_EQ(engine.counters().finished, 3);
}

// A memory takes no such keys, an exact search no such queries.
TEST(Engine, ATextWhoseKeysOrQueriesAreNotFiniteEndsAlone) {
  const tokenizer::ByteTokenizer tokenizer;
  const std::string context(40, 'a');  // longer than the window
  Job whole = job_of("abc", 100);
  whole.options.sampler.logit_bias = {{.token = '!', .bias = -1e4}};
  for (const auto& [name, of_variant] : test::memory_variants()) {
    for (const int64_t top_k : {0, 4}) {
      SCOPED_TRACE(testing::Message() << name << " top_k " << top_k);
      models::DecoderConfig config = of_variant;
      config.vocab_size = tokenizer::ByteTokenizer::kVocabSize;
      config.memory.top_k = top_k;
      models::Decoder decoder(config, /*seed=*/3, test::test_device());
      test::spread_weights(decoder, 4);
      spoil_embeddings(decoder, {'!'});
      Engine engine(decoder, tokenizer, {});
      const std::string expected = collect(*engine.submit(whole), 1).texts[0];
      const auto running = engine.submit(whole);
      Job remembered = job_of("!" + context, 5), scored = remembered;
      scored.options.prompt_scores.logprobs = true;
      const auto first = engine.submit(remembered), second = engine.submit(scored);
      const auto third = engine.submit(job_of(context + "!b", 5));
      const auto last = engine.submit(whole);
      for (const auto& reply : {first, second}) {
        EXPECT_SAYS(collect(*reply, 1).error, "memory: keys hold NaN or an infinity");
      }
      EXPECT_SAYS(collect(*third, 1).error, "sampler: the logit of token 0 is ");
      for (const auto& other : {running, last}) {
        const Collected collected = collect(*other, 1);
        EXPECT_EQ(collected.error, "");
        EXPECT_EQ(collected.texts[0], expected);
      }
      engine.wait_until_idle();
      EXPECT_EQ(engine.counters().failed, 3);
      EXPECT_EQ(engine.counters().finished, 3);
    }
  }
}

TEST_F(EngineTest, WhatDoesNotFitWaitsOrIsRefused) {
  Engine engine(decoder, tokenizer, {.max_batch = 1, .max_waiting = 3, .max_cache_tokens = 1000});
  EXPECT_THROW(engine.submit(job_of("a", 1000)), Error);
  Job many = job_of("a", 5);
  many.texts_per_prompt = 2;
  EXPECT_THROW(engine.submit(many), Error) << "more texts than a batch has";
  std::vector<std::shared_ptr<Reply>> replies;
  try {
    for (int i = 0; i < 20; ++i) replies.push_back(engine.submit(job_of("abc", 400)));
    ADD_FAILURE() << "the queue has no end";
  } catch (const QueueFull&) {
    EXPECT_GE(replies.size(), 3U);
  }
  for (const auto& reply : replies) {
    EXPECT_EQ(collect(*reply, 1).texts[0].empty(), false);
  }
}

TEST_F(EngineTest, RejectsBeforeAnythingRuns) {
  Engine engine(decoder, tokenizer, {});
  EXPECT_THROW(engine.submit(Job{}), Error);
  EXPECT_THROW(engine.submit(job_of("", 5)), Error);
  Job outside = job_of("a", 5);
  outside.prompts[0][0] = 258;
  EXPECT_THROW(engine.submit(outside), Error);
  Job negative = job_of("a", 5);
  negative.options.sampler.temperature = -1;
  EXPECT_THROW(engine.submit(negative), Error);
  Job empty_stop = job_of("a", 5);
  empty_stop.stop = {""};
  EXPECT_THROW(engine.submit(empty_stop), Error);
  EXPECT_EQ(engine.counters().waiting, 0);
}

TEST_F(EngineTest, CancelledTextsLeaveTheirPages) {
  Engine engine(decoder, tokenizer, {});
  const auto reply = engine.submit(job_of("abc", 1'000'000));
  const auto other = engine.submit(job_of("abd", 50));
  ASSERT_TRUE(reply->next(kPatience));
  reply->cancel();
  EXPECT_EQ(collect(*other, 1).error, "");
  engine.wait_until_idle();
  EXPECT_EQ(engine.counters().cancelled, 1);
  EXPECT_EQ(engine.counters().finished, 1);
  EXPECT_EQ(engine.counters().cache_pages, 0);
}

TEST_F(EngineTest, EndingTheEngineEndsTheReplies) {
  std::shared_ptr<Reply> running, waiting;
  {
    Engine engine(decoder, tokenizer, {.max_batch = 1});
    running = engine.submit(job_of("abc", 1'000'000));
    waiting = engine.submit(job_of("abc", 1'000'000));
    ASSERT_TRUE(running->next(kPatience));
  }
  EXPECT_EQ(collect(*running, 1).error, "the server is stopping");
  EXPECT_EQ(collect(*waiting, 1).error, "the server is stopping");
}

// A long prompt is read in pieces between the steps of those who write: a short one that comes
// later has its text long before.
TEST_F(EngineTest, ShortOnesDoNotWaitForLongPrompts) {
  Engine engine(decoder, tokenizer, {});
  const auto longest = engine.submit(job_of(std::string(12000, 'l'), 2));
  const auto late = engine.submit(job_of("short", 10));
  collect(*late, 1);
  EXPECT_FALSE(longest->is_done());
  longest->cancel();
}

// Short prompts take nothing but their own tokens from a long one's chunks: beside a text that is
// written, a step reads 64 tokens of all prompts together.
TEST_F(EngineTest, LongPromptsDoNotWaitForEachShortOne) {
  Engine engine(
      decoder,
      tokenizer,
      {.max_batch = 64, .max_waiting = 1000, .chunk_tokens = 64, .least_chunk_tokens = 64});
  const auto endless = engine.submit(job_of("abc", 1'000'000));
  ASSERT_TRUE(endless->next(kPatience));
  const auto longest = engine.submit(job_of(std::string(64 * 40, 'l'), 1));
  std::vector<std::shared_ptr<Reply>> others;
  for (int i = 0; i < 400; ++i) others.push_back(engine.submit(job_of("ab", 1)));
  const int64_t begin = engine.counters().steps;
  collect(*longest, 1);
  EXPECT_LT(engine.counters().steps - begin, 2 * 40 + 20);
  for (const auto& reply : others) EXPECT_EQ(collect(*reply, 1).error, "");
  endless->cancel();
}

TEST_F(EngineTest, WhoGoesAwayWhileWaitingLeavesThePlace) {
  Engine engine(decoder, tokenizer, {.max_batch = 1, .max_waiting = 3});
  const auto running = engine.submit(job_of("abc", 1'000'000));
  ASSERT_TRUE(running->next(kPatience));
  std::vector<std::shared_ptr<Reply>> waiting;
  for (int i = 0; i < 3; ++i) waiting.push_back(engine.submit(job_of("abd", 5)));
  EXPECT_THROW(engine.submit(job_of("abe", 5)), QueueFull);
  // One that would not fit into an empty queue is not told to try again.
  Job large = job_of("abf", 5);
  large.prompts.resize(4, large.prompts[0]);
  EXPECT_SAYS(test::error_of([&] { engine.submit(large); }),
              "prompts times n or best_of = 4; expected at most the 3 that may wait");
  waiting[1]->cancel();
  ASSERT_TRUE(test::eventually([&] { return engine.counters().cancelled == 1; }));
  waiting.push_back(engine.submit(job_of("abe", 5)));
  running->cancel();
  for (const int which : {0, 2, 3}) EXPECT_EQ(collect(*waiting[which], 1).error, "");
}

TEST_F(EngineTest, StopStringsEndOnlyTheirText) {
  Engine engine(decoder, tokenizer, {});
  const std::string whole = collect(*engine.submit(job_of("abc", 40)), 1).texts[0];
  const auto are_ascii = [](char a, char b) { return a >= 0 && b >= 0; };
  const auto two_tokens = std::ranges::adjacent_find(whole, are_ascii);
  ASSERT_NE(two_tokens, whole.end()) << whole;
  const std::string stop(two_tokens, two_tokens + 2);
  Job job = job_of("abc", 40);
  job.stop = {"never", stop};
  const std::string text = collect(*engine.submit(job), 1).texts[0];
  EXPECT_EQ(text, whole.substr(0, whole.find(stop)));
}

TEST_F(EngineTest, NoTokensIsAnAnswerToo) {
  Engine engine(decoder, tokenizer, {});
  Job job = job_of("abc", 0);
  job.options.prompt_scores.logprobs = true;
  const auto reply = engine.submit(job);
  std::size_t scores = 0;
  while (!reply->is_done()) {
    if (const auto piece = reply->next(kPatience)) {
      scores += piece->prompt_scores->size();
      EXPECT_EQ(piece->finished, FinishReason::kLength);
    }
  }
  EXPECT_EQ(scores, 2U);
}

}  // namespace
}  // namespace reynard::serving
