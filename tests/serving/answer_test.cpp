#include "reynard/serving/answer.h"

#include "reynard/protocol/api_error.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/errors.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace reynard::serving {
namespace {

struct AnswerTest : testing::Test {
  tokenizer::ByteTokenizer tokenizer;
  ServedModel model{.name = "small",
                    .tokenizer = &tokenizer,
                    .vocab_size = tokenizer::ByteTokenizer::kVocabSize,
                    .max_length = int64_t{1} << 22,
                    .bos = {},
                    .stop = {},
                    .chat = {}};

  static generation::ScoredToken scored(int64_t token) { return {{token, -1.0F}, {}}; }
};

// Nobody asks for the whole of it.
TEST_F(AnswerTest, AStreamKeepsNothingThatItSent) {
  for (const bool stream : {false, true}) {
    protocol::CompletionRequest request;
    request.prompts = {"ab"};
    request.logprobs = 0;
    request.sampling.stream = stream;
    const Ask ask = ask_completion(request, model);
    Answer answer(ask, model);
    for (const char letter : {'c', 'd'}) {
      const protocol::Choice sent =
          answer.add({.text = std::string(1, letter), .tokens = {scored(letter)}});
      EXPECT_EQ(sent.text, std::string(1, letter));
      EXPECT_EQ(sent.logprobs->size(), 1U);
    }
    const protocol::Choice kept = answer.choices().at(0);
    EXPECT_EQ(kept.text, stream ? "" : "cd");
    EXPECT_EQ(kept.logprobs->size(), stream ? 0U : 2U);
    EXPECT_EQ(answer.usage().completion_tokens, 2);
  }
}

TEST_F(AnswerTest, ChoicesShareTheScoresOfTheirPrompt) {
  protocol::CompletionRequest request;
  request.prompts = {"abc", "xyz"};
  request.sampling.n = request.best_of = 2;
  request.echo = true;
  request.logprobs = 0;
  const Ask ask = ask_completion(request, model);
  Answer answer(ask, model);
  const auto scores = std::make_shared<const std::vector<generation::ScoredToken>>(2, scored('b'));
  for (const int64_t index : {1, 3, 0, 2}) {
    const protocol::Choice sent =
        answer.add({.index = index, .tokens = {scored('d')}, .prompt_scores = scores});
    EXPECT_EQ(sent.prompt_logprobs->size(), 3U);
    EXPECT_EQ(sent.logprobs->at(0).text_offset, 3);
    answer.add({.index = index, .tokens = {scored('e')}});
  }
  const std::vector<protocol::Choice> choices = answer.choices();
  ASSERT_EQ(choices.size(), 4U);
  for (const protocol::Choice& choice : choices) {
    EXPECT_EQ(choice.logprobs->size(), 2U);
    EXPECT_EQ(choice.prompt_logprobs, choices[choice.index / 2 * 2].prompt_logprobs);
  }
  EXPECT_EQ(choices[0].prompt_logprobs->at(2).text_offset, 2);
  EXPECT_EQ(choices[2].prompt_logprobs->at(0).text, "x");
}

// The same as `reynard generate --stats`.
TEST_F(AnswerTest, TheEndOfATextSaysWhatItsCacheHolds) {
  protocol::CompletionRequest request;
  request.prompts = {"ab"};
  const Ask ask = ask_completion(request, model);
  models::CacheUse use{.pages_kept = {{2, 1}}, .pages_seen = 2, .page_bytes = 100};
  const auto cache_of = [&](double log_evicted_share) {
    use.log_evicted_share = log_evicted_share;
    return Answer(ask, model)
        .add({.finished = generation::FinishReason::kLength, .cache = use})
        .cache.dump();
  };
  const std::string counts =
      R"("pages_kept":[[2,1]],"pages_seen":2,"page_bytes":100,"bytes_kept":300,"bytes_saved":100)";
  EXPECT_EQ(cache_of(-8.5), "{" + counts + R"(,"log_evicted_share":-8.5})");
  EXPECT_EQ(cache_of(-INFINITY), "{" + counts + R"(,"log_evicted_share":null})");
}

TEST_F(AnswerTest, ChatGoesOnBehindATurnWhereItIsTold) {
  model.stop = {tokenizer::ByteTokenizer::kEos};
  for (const char* name : {"longllama", "chatml"}) {  // a token and a text end a turn
    model.chat = generation::ChatTemplate::named(name, {"<bos>", "<eos>"});
    protocol::ChatRequest request;
    request.messages = {{"user", "hi"}};
    request.sampling.stop = {"."};
    const Ask ends = ask_chat(request, model);
    EXPECT_EQ(ends.job.options.stop.size() + ends.job.stop.size(), 3U) << name;
    request.sampling.ignore_eos = true;
    const Ask goes_on = ask_chat(request, model);
    EXPECT_TRUE(goes_on.job.options.stop.empty()) << name;
    EXPECT_EQ(goes_on.job.stop, std::vector<std::string>{"."}) << name;
  }
}

// What they lack may follow.
TEST_F(AnswerTest, EchoedIdsMayEndWithinACharacter) {
  const auto words = test::sentencepiece_tokenizer();
  model.tokenizer = words.get();
  model.vocab_size = words->vocab_size();
  const auto ids = words->encode("the\xf0\x9f\x98\x80");
  protocol::CompletionRequest request;
  request.prompts = {std::vector<int64_t>(ids.begin(), ids.end() - 1)};
  request.echo = true;
  const Ask ask = ask_completion(request, model);
  EXPECT_EQ(ask.echoes, std::vector<std::string>{"the"});
  EXPECT_EQ(ask.job.begun, std::vector<std::string>{"\xf0\x9f\x98"});
}

// Scores of echoed prompts are there once for each choice of an answer.
TEST_F(AnswerTest, ScoresOfEchoedPromptsAreLimited) {
  const auto ask = [&](int64_t tokens, int64_t n, int64_t logprobs) {
    protocol::CompletionRequest request;
    request.prompts = {std::vector<int64_t>(tokens, 'a'), std::vector<int64_t>{'b'}};
    request.sampling.n = n;
    request.best_of = 64;  // all texts of a prompt share its scores
    request.echo = true;
    request.logprobs = logprobs;
    return ask_completion(request, model);
  };
  const auto expect_refused = [&](const auto& call, const char* param, const char* part) {
    try {
      call();
      ADD_FAILURE() << "accepted: " << part;
    } catch (const protocol::ApiError& error) {
      EXPECT_EQ(error.status, 400);
      EXPECT_EQ(error.param, param);
      EXPECT_SAYS(error.what(), part);
      EXPECT_SAYS(error.what(), "; expected at most 2097152");
    }
  };
  constexpr int64_t kLimit = int64_t{1} << 21;
  EXPECT_EQ(ask(kLimit / 64 - 1, 8, 7).texts_shown, 8);
  expect_refused([&] { ask(kLimit / 64, 8, 7); },
                 "logprobs",
                 "log-probabilities of 32769 prompt tokens, 8 for each in 8 texts: 2097216");
  expect_refused([&] { ask(kLimit / 64, 64, 7); }, "n", "in 64 texts");
  expect_refused([&] { ask(kLimit, 1, 0); }, "prompt", "log-probabilities of 2097153 prompt");
  // Those that are not echoed, or not scored, have none.
  protocol::CompletionRequest request;
  request.prompts = {std::vector<int64_t>(kLimit, 'a')};
  request.echo = true;
  EXPECT_EQ(ask_completion(request, model).job.prompts.size(), 1U);
  request.echo = false, request.logprobs = 100;
  EXPECT_EQ(ask_completion(request, model).job.prompts.size(), 1U);
}

}  // namespace
}  // namespace reynard::serving
