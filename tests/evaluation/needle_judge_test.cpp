// Answers to the needle's question rated by a judge behind a stub server.

#include "reynard/evaluation/needle_judge.h"

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/tensor/check.h"
#include "tests/evaluation/stub_server.h"
#include "tests/support/corpus.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace reynard::evaluation {
namespace {

using nlohmann::json;
using test::answer_json;
using test::StubServer;

constexpr const char* kRoute = "/v1/chat/completions";

// Ten for answers with a sandwich, else nothing that is a rating.
void judge(const json& body, httplib::Response& response) {
  const std::string asked = body.at("messages")[1].at("content");
  const size_t answer = asked.find("[The Start of the Model's Answer]");
  const bool good = asked.find("sandwich", answer) != std::string::npos;
  answer_json(response,
              {{"choices",
                {{{"message", {{"content", good ? "Fine. Rating: [[10]]" : "I cannot say"}}}}}}});
}

TEST(NeedleJudge, AsksWithThePublishedWords) {
  const StubServer server(judge, kRoute);
  const NeedleJudge asked(server.options());
  EXPECT_EQ(asked.rating("eat a sandwich"), 10);
  EXPECT_FALSE(asked.rating("walk"));
  const json body = server.bodies().front();
  EXPECT_EQ(body.at("model"), "stub");
  EXPECT_EQ(body.at("temperature"), 0);
  EXPECT_EQ(body.at("messages")[0].at("content"), "You are a helpful assistant.");
  const std::string prompt = body.at("messages")[1].at("content");
  EXPECT_TRUE(prompt.starts_with("[Instruction]\nPlease act as an impartial judge"));
  EXPECT_NE(prompt.find("accuracy: \n    Score 1: The answer is completely unrelated"),
            std::string::npos);
  EXPECT_NE(
      prompt.find("[Ground truth]\n\nThe best thing to do in San Francisco is eat a sandwich"),
      std::string::npos);
  EXPECT_TRUE(prompt.ends_with("Answer]\neat a sandwich\n[The End of the Model's Answer]"));
}

TEST(NeedleJudge, AnAnswerWithoutContentIsNamed) {
  const StubServer server(
      [](const json&, httplib::Response& r) {
        answer_json(r, {{"choices", {{{"text", "5"}}}}});
      },
      kRoute);
  try {
    NeedleJudge(server.options()).rating("x");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("choices[0].message.content is missing"),
              std::string::npos);
  }
}

// Says where to eat at even depths.
class HalfRight final : public Scorer {
 public:
  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) {
      const bool knows = request.about.at("depth").get<int64_t>() < 50;
      const std::string text =
          knows ? " eat a sandwich and sit in Dolores Park on a sunny day" : " walk";
      Generated generated;
      for (const char c : text) generated.tokens.push_back(static_cast<unsigned char>(c));
      responses.emplace_back(std::move(generated));
    }
    return responses;
  }
};

TEST(NeedleJudge, RatingsAreAveragedBesideTheScore) {
  const StubServer server(judge, kRoute);
  const test::TempDir folder;
  const Corpus corpus = test::corpus_of(std::vector<int64_t>(4000, 'a'), {4000});
  EvaluationConfig config;
  config.needle.longest = 1000;
  config.needle.lengths = 1;
  config.needle.depths = 2;
  config.needle.judge = server.options().url;
  config.needle.judge_model = "stub";
  HalfRight scorer;
  const auto task = task_named("needle").make(corpus, config, {});
  const json summary = evaluate(scorer, *task, {.folder = folder.path()});
  EXPECT_EQ(summary.at("metrics").at("score"), 0.5);
  EXPECT_EQ(summary.at("metrics").at("rating"), 10);
  EXPECT_EQ(summary.at("metrics").at("rated"), 1);
  EXPECT_EQ(summary.at("settings").at("judge_model"), "stub");
  EXPECT_EQ(summary.at("series").at("groups")[0].at("rating"), 10);
  EXPECT_FALSE(summary.at("series").at("groups")[1].contains("rating"));
  EXPECT_NE(test::read_file(folder / "needle.jsonl").find("\"rating\":null"), std::string::npos);
}

}  // namespace
}  // namespace reynard::evaluation
