// Few-shot questions: what the prompts hold, and accuracies of stub models.

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/tensor/check.h"
#include "tests/evaluation/writer.h"
#include "tests/support/corpus.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace reynard::evaluation {
namespace {

// Knows the answers, or always prefers the option that is first in the alphabet.
class Stub final : public Scorer {
 public:
  explicit Stub(bool knows) : knows_(knows) {}
  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) {
      const std::string right = request.about.at("answers")[0];
      if (const auto* score = std::get_if<Score>(&request.query)) {
        const std::string option = request.about.at("option");
        const float logprob = knows_ ? (option == right ? -1.0F : -2.0F)
                                     : -static_cast<float>(static_cast<unsigned char>(option[0]));
        Scored scored;
        scored.logprobs.assign(score->continuation.size(),
                               logprob / static_cast<float>(score->continuation.size()));
        scored.hits.assign(score->continuation.size(), 0);
        responses.emplace_back(std::move(scored));
        continue;
      }
      Generated generated;
      for (const char c : knows_ ? " " + right + ".\nmore" : std::string(" x")) {
        generated.tokens.push_back(static_cast<unsigned char>(c));
      }
      responses.emplace_back(std::move(generated));
    }
    return responses;
  }

 private:
  bool knows_;
};

class FewShotTask : public testing::Test {
 protected:
  FewShotTask() : corpus_(test::corpus_of({1, 2, 3}, {3})) {
    std::string lines;
    for (int i = 0; i < 40; ++i) {
      lines += fmt::format("{{\"question\": \"what is {}?\", \"answer\": \"{}\"}}\n",
                           i,
                           i % 4 == 0   ? "number"
                           : i % 4 == 1 ? "place"
                           : i % 4 == 2 ? "thing"
                                        : "who");
    }
    test::write_file(folder_ / "all.jsonl", lines);
    config_.few_shot.train = (folder_ / "all.jsonl").string();
    config_.few_shot.test = config_.few_shot.train;
    config_.few_shot.lengths = {300, 600};
    config_.few_shot.draws = 3;
  }
  nlohmann::json run(bool knows) {
    const test::TempDir results;
    Stub stub(knows);
    return evaluate(
        stub, *task_named("few_shot").make(corpus_, config_, {}), {.folder = results.path()});
  }
  std::string error() {
    try {
      task_named("few_shot").make(corpus_, config_, {});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  test::TempDir folder_;
  Corpus corpus_;
  EvaluationConfig config_;
};

// Options were scored with other tokens, and case was folded of ASCII alone.
TEST_F(FewShotTask, LinesThatWereScoredAnotherWayAreReplaced) {
  const test::TempDir results;
  const auto task = task_named("few_shot").make(corpus_, config_, {});
  nlohmann::json settings = task->settings();
  settings.erase("scoring");
  const nlohmann::json header{
      {"task", "few_shot"}, {"settings", settings}, {"identity", nlohmann::json::object()}};
  const Request first = task->requests().at(0);
  nlohmann::json line = first.about;
  line.update({{"id", first.id}, {"logprob", -0.5}});
  test::write_file(results / "few_shot.jsonl", header.dump() + "\n" + line.dump() + "\n");
  std::string said;
  Stub stub(true);
  const auto summary =
      evaluate(stub, *task, {.folder = results.path(), .say = [&](const auto& s) { said += s; }});
  EXPECT_EQ(summary.at("effort").at("reused_samples"), 0);
  EXPECT_NE(said.find("few_shot.jsonl: samples of other settings"), std::string::npos) << said;
}

TEST_F(FewShotTask, OracleScoresOneAndAConstantAnswerChance) {
  const auto right = run(true);
  EXPECT_EQ(right.at("metrics").at("score"), 1.0);
  EXPECT_EQ(right.at("metrics").at("chance"), 0.25);
  EXPECT_EQ(right.at("series").at("groups").size(), 2);
  EXPECT_EQ(right.at("series").at("groups")[0].at("samples"), 3);
  EXPECT_EQ(run(false).at("metrics").at("score"), 0.25);
  config_.few_shot.kind = FewShotKind::kAnswer;
  config_.few_shot.max_tokens = 10;
  EXPECT_EQ(run(true).at("metrics").at("score"), 1.0);
  EXPECT_EQ(run(false).at("metrics").at("score"), 0.0);
}

TEST_F(FewShotTask, ExamplesFillTheContextAndDifferByDraw) {
  const auto task = task_named("few_shot").make(corpus_, config_, {});
  const Requests requests = task->requests();
  ASSERT_EQ(requests.size, 2 * 3 * 40 * 4);
  const auto prompt = [&](int64_t i) {
    return corpus_.decode(std::get<Score>(requests.at(i).query).context);
  };
  const std::string first = prompt(0);
  EXPECT_TRUE(first.ends_with("Question: what is 0? Type:")) << first;
  EXPECT_NE(first.find(" Type: place\nQuestion: "), std::string::npos) << first;
  EXPECT_LE(first.size(), 300);
  EXPECT_GT(first.size(), 230);
  EXPECT_NE(prompt(0), prompt(40 * 4));
  EXPECT_GT(prompt(3 * 40 * 4).size(), 500);
}

TEST_F(FewShotTask, WrittenAnswersFitBehindTheirPrompts) {
  config_.few_shot.kind = FewShotKind::kAnswer;
  config_.few_shot.max_tokens = 80;
  const auto task = task_named("few_shot").make(corpus_, config_, {});
  const Requests requests = task->requests();
  for (int64_t i = 0; i < requests.size; ++i) {
    const Request request = requests.at(i);
    const auto& query = std::get<Generate>(request.query);
    EXPECT_EQ(query.max_tokens, 80);
    EXPECT_LE(std::ssize(query.prompt) + 80, request.about.at("length").get<int64_t>());
  }
}

// Of accuracies 1, 0 and 0.
TEST_F(FewShotTask, SpreadIsThatOfASampleOfDraws) {
  config_.few_shot.kind = FewShotKind::kAnswer;
  config_.few_shot.max_tokens = 10;
  Writer lucky([](const Request& request) {
    return request.about.at("draw") == 0 ? request.about.at("answers")[0].get<std::string>() : "x";
  });
  const test::TempDir results;
  const auto summary = evaluate(
      lucky, *task_named("few_shot").make(corpus_, config_, {}), {.folder = results.path()});
  const auto group = summary.at("series").at("groups")[0];
  EXPECT_NEAR(group.at("score"), 1.0 / 3, 1e-12);
  EXPECT_NEAR(group.at("deviation"), std::sqrt(1.0 / 3), 1e-12);
  EXPECT_NEAR(group.at("standard_error"), 1.0 / 3, 1e-12);
}

// A tokenizer may put a mark before a text, and join what is on both sides of a cut.
TEST_F(FewShotTask, OptionsHaveTheTokensOfSolvedExamples) {
  const auto plain = [bytes = corpus_.encode](std::string_view text) {
    std::vector<int64_t> tokens = bytes(text);
    tokens.insert(tokens.begin(), '_');
    return tokens;
  };
  const auto first = [&] {
    const auto task = task_named("few_shot").make(corpus_, config_, {});
    return std::get<Score>(task->requests().at(0).query);
  };
  corpus_.encode = plain;
  const Score marked = first();
  EXPECT_EQ(corpus_.decode(marked.continuation), " number");
  EXPECT_TRUE(corpus_.decode(marked.context).starts_with("_Question: "));
  EXPECT_TRUE(corpus_.decode(marked.context).ends_with(" Type:"));

  corpus_.encode = [&](std::string_view text) {
    std::vector<int64_t> tokens = plain(text);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      if (tokens[i] != ':' || tokens[i + 1] != ' ') continue;
      tokens[i] = ';';
      tokens.erase(tokens.begin() + static_cast<int64_t>(i) + 1);
    }
    return tokens;
  };
  const Score joined = first();
  EXPECT_EQ(corpus_.decode(joined.continuation), ";number");
  EXPECT_TRUE(corpus_.decode(joined.context).ends_with(" Type"));
}

TEST_F(FewShotTask, WrittenAnswersAreFoldedByCharacter) {
  test::write_file(folder_ / "all.jsonl", "{\"question\": \"q\", \"answer\": \"\u00c9co\"}\n");
  config_.few_shot.kind = FewShotKind::kAnswer;
  const auto task = task_named("few_shot").make(corpus_, config_, {});
  Generated generated;
  for (const char c : std::string(" \u00e9CO.\n")) {
    generated.tokens.push_back(static_cast<unsigned char>(c));
  }
  EXPECT_EQ(task->sample(task->requests().at(0), generated).at("score"), 1.0);
}

TEST_F(FewShotTask, ReadsTrecAndWebQuestionsAsTheyArePublished) {
  test::write_file(folder_ / "train.label",
                   "DESC:manner How did serfdom develop ?\r\nHUM:ind Who was Andr\xe9 ?\n\n"
                   "DESC:manner Why ?\n");
  config_.few_shot.train = config_.few_shot.test = (folder_ / "train.label").string();
  const auto trec = task_named("few_shot").make(corpus_, config_, {});
  EXPECT_EQ(trec->settings().at("options"), (nlohmann::json{"DESC:manner", "HUM:ind"}));
  const std::string prompt = corpus_.decode(std::get<Score>(trec->requests().at(2).query).context);
  EXPECT_TRUE(prompt.ends_with("Question: Who was Andr\u00e9 ? Type:")) << prompt;
  test::write_file(folder_ / "train.label", "DESC:manner Why ?\nno class\n");
  EXPECT_NE(error().find("train.label:2 is no \"CLASS:kind question\""), std::string::npos)
      << error();

  test::write_file(folder_ / "web.json", R"json([
      {"url": "u", "utterance": "what is x?", "targetValue":
       "(list (description \"J. \\\"Q\\\" B\") (description Jaxon) (description \"\"Be it\"\"))"},
      {"utterance": "who?", "targetValue": "(list)"}])json");
  config_.few_shot.kind = FewShotKind::kAnswer;
  config_.few_shot.train = config_.few_shot.test = (folder_ / "web.json").string();
  EXPECT_NE(error().find("web.json: entry 2 has no text"), std::string::npos) << error();
  config_.few_shot.skip_bad = true;
  const auto web = task_named("few_shot").make(corpus_, config_, {});
  EXPECT_EQ(web->requests().at(0).about.at("answers"),
            (nlohmann::json{"J. \"Q\" B", "Jaxon", "\"Be it\""}));
}

TEST_F(FewShotTask, BadDataIsNamedByLine) {
  config_.few_shot.test.clear();
  EXPECT_NE(error().find("--few_shot.test=FILE"), std::string::npos) << error();
  config_.few_shot.test = (folder_ / "missing.jsonl").string();
  EXPECT_NE(error().find("TREC_10.label"), std::string::npos) << error();
  test::write_file(folder_ / "bad.jsonl",
                   "{\"question\": \"q\", \"answer\": \"a\"}\n\n{\"question\": 3}\nnot json\n");
  config_.few_shot.test = (folder_ / "bad.jsonl").string();
  EXPECT_NE(error().find("bad.jsonl:4 is not a JSON object"), std::string::npos) << error();
  config_.few_shot.skip_bad = true;
  EXPECT_EQ(task_named("few_shot").make(corpus_, config_, {})->settings().at("skipped"), 2);
  config_.few_shot.lengths = {10};
  EXPECT_NE(error().find("the longest question alone"), std::string::npos) << error();
}

// Without its full stops it would be what a model writes that writes nothing.
TEST_F(FewShotTask, AWrittenAnswerIsMoreThanFullStops) {
  config_.few_shot.test = (folder_ / "stops.jsonl").string();
  for (const std::string stops : {".", " . ..", "\\t."}) {
    test::write_file(folder_ / "stops.jsonl",
                     "{\"question\": \"q\", \"answer\": \"a\"}\n{\"question\": \"q\", "
                     "\"answers\": [\"b\", \"" +
                         stops + "\"]}\n");
    config_.few_shot.kind = FewShotKind::kAnswer;
    EXPECT_NE(error().find("stops.jsonl:2 has an answer of full stops alone"), std::string::npos)
        << error();
    config_.few_shot.skip_bad = true;
    EXPECT_EQ(task_named("few_shot").make(corpus_, config_, {})->settings().at("skipped"), 1);
    config_.few_shot.skip_bad = false;
    config_.few_shot.kind = FewShotKind::kChoice;  // a label like any other
    EXPECT_EQ(error(), "");
  }
}

}  // namespace
}  // namespace reynard::evaluation
