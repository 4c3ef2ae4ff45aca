#include "reynard/serving/answer.h"

#include "reynard/protocol/api_error.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/utf8.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
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
  static std::size_t bytes_of(const std::string& text, int64_t characters) {
    return tokenizer::first_characters(text, characters).size();
  }
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

TEST_F(AnswerTest, UsageCountsTheTokenThatEndsATextAndWhatWasReused) {
  protocol::CompletionRequest request;
  request.prompts = {"abc", "xy"};
  const Ask ask = ask_completion(request, model);
  Answer answer(ask, model);
  answer.add({.index = 0, .tokens = {scored('c')}, .reused_tokens = 2});
  answer.add({.index = 0, .finished = generation::FinishReason::kStop, .end = scored('.')});
  answer.add({.index = 1, .tokens = {scored('d')}, .reused_tokens = 1});
  EXPECT_EQ(answer.usage().prompt_tokens, 5);
  EXPECT_EQ(answer.usage().completion_tokens, 3);
  EXPECT_EQ(answer.usage().cached_tokens, 3);
}

// Else the shortest would be.
TEST_F(AnswerTest, TheBestTextIsTheMostProbableByItsTokens) {
  protocol::CompletionRequest request;
  request.prompts = {"ab"};
  request.best_of = 2;
  const Ask ask = ask_completion(request, model);
  Answer answer(ask, model);
  answer.add({.index = 0, .text = "short", .tokens = {{{'s', -1.5F}, {}}}});
  answer.add({.index = 1, .text = "long", .tokens = {scored('l'), scored('o'), scored('n')}});
  ASSERT_EQ(answer.choices().size(), 1U);
  EXPECT_EQ(answer.choices()[0].text, "long");
}

// Of a completion the API's 16; where less is left, that.
TEST_F(AnswerTest, TextsEndWhereTheContextDoes) {
  protocol::CompletionRequest request;
  request.prompts = {std::string(10, 'a')};
  EXPECT_EQ(ask_completion(request, model).job.options.max_tokens, 16);
  model.max_length = 14;
  EXPECT_EQ(ask_completion(request, model).job.options.max_tokens, 4);
  const auto refused = [&](std::optional<int64_t> max_tokens) {
    request.sampling.max_tokens = max_tokens;
    try {
      ask_completion(request, model);
    } catch (const protocol::ApiError& error) {
      EXPECT_EQ(error.status, 400);
      EXPECT_EQ(error.code, "context_length_exceeded");
      return error.param;
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refused(4), "nothing");
  EXPECT_EQ(refused(5), "prompt");
  EXPECT_EQ(refused(15), "max_tokens");
  model.max_length = 10;
  EXPECT_EQ(refused({}), "prompt");
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

// Offsets are compared with the length of what the client itself sent.
TEST_F(AnswerTest, OffsetsAreThoseOfThePromptWhateverTheTokenizerMakesOfItsBlanks) {
  const test::TempDir folder;
  test::write_file(folder / "one.model",
                   test::sentencepiece_model({.remove_extra_whitespaces = true}));
  const auto words = tokenizer::make_tokenizer((folder / "one.model").string());
  model.tokenizer = words.get();
  model.vocab_size = words->vocab_size();
  for (const char* prompt : {"the hello",
                             "the  hello",
                             "  the hello",
                             " the    hello  the  ",
                             "the \xc3\xa9  hello",
                             "   hello"}) {
    protocol::CompletionRequest request;
    request.prompts = {prompt};
    request.echo = true;
    request.logprobs = 0;
    const Ask ask = ask_completion(request, model);
    std::vector<generation::ScoredToken> scores;
    for (const int64_t id : ask.job.prompts[0]) scores.push_back(scored(id));
    scores.erase(scores.begin());
    Answer answer(ask, model);
    const protocol::Choice sent = answer.add(
        {.tokens = {scored(words->encode("the").at(0))},
         .prompt_scores = std::make_shared<const std::vector<generation::ScoredToken>>(scores)});
    EXPECT_EQ(sent.text, prompt);
    for (const protocol::TokenLogprob& token : *sent.prompt_logprobs) {
      if (!tokenizer::is_utf8(token.text)) continue;  // a part of a character
      EXPECT_TRUE(sent.text.substr(bytes_of(sent.text, token.text_offset)).starts_with(token.text))
          << '"' << prompt << "\": \"" << token.text << "\" at " << token.text_offset;
    }
    EXPECT_EQ(sent.logprobs->at(0).text_offset, tokenizer::num_characters(prompt));
  }
}

// What is left of a character that no byte ends is one of its own.
TEST_F(AnswerTest, TokensBeginBehindUnfinishedCharacters) {
  const auto offsets_of = [&](const std::vector<int64_t>& prompt,
                              const std::vector<int64_t>& written,
                              bool echo) {
    protocol::CompletionRequest request;
    request.prompts = {prompt};
    request.echo = echo;
    request.logprobs = 0;
    const Ask ask = ask_completion(request, model);
    std::vector<generation::ScoredToken> scores, tokens;
    for (const int64_t id : prompt) scores.push_back(scored(id));
    scores.erase(scores.begin());
    for (const int64_t id : written) tokens.push_back(scored(id));
    Answer answer(ask, model);
    const protocol::Choice sent = answer.add(
        {.tokens = tokens,
         .prompt_scores = std::make_shared<const std::vector<generation::ScoredToken>>(scores)});
    std::vector<int64_t> offsets;
    if (echo) {
      for (const auto& token : *sent.prompt_logprobs) offsets.push_back(token.text_offset);
    }
    for (const auto& token : *sent.logprobs) offsets.push_back(token.text_offset);
    return offsets;
  };
  using Offsets = std::vector<int64_t>;
  EXPECT_EQ(offsets_of({'a', 0xe2, 'b', 'c'}, {}, true), (Offsets{0, 1, 2, 3}));
  EXPECT_EQ(offsets_of({'a', 0xe2, 0x82, 'b'}, {}, true), (Offsets{0, 1, 1, 2}));
  EXPECT_EQ(offsets_of({'a'}, {0xe2, 0xe2}, false), (Offsets{0, 1}));
  EXPECT_EQ(offsets_of({'a', 0xe2}, {0x82, 0xac, 'b'}, true), (Offsets{0, 1, 1, 1, 2}));
  EXPECT_EQ(offsets_of({'a', 0xe2}, {'b', 'c'}, true), (Offsets{0, 1, 2, 3}));
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
