#include "reynard/serving/answer.h"

#include "reynard/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace reynard::serving
