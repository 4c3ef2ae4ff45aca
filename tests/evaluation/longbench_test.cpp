// LongBench: the metrics against values of the published packages, the files, and the task on
// stubs.

#include "reynard/evaluation/longbench.h"

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/tensor/check.h"
#include "tests/evaluation/writer.h"
#include "tests/support/corpus.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace reynard::evaluation {
namespace {

using nlohmann::json;
using enum LongbenchMetric;

TEST(LongbenchScore, F1OfWords) {
  const auto f1 = [](const char* a, const char* b) { return longbench_score(kF1, a, b, {}); };
  EXPECT_DOUBLE_EQ(f1("The Quick, brown fox!", "a quick fox"), 0.8);
  EXPECT_DOUBLE_EQ(f1("It’s “the” answer\u00a0here", "answer here its"), 0.5);
  EXPECT_DOUBLE_EQ(f1("ÉCOLE du roi", "école du the roi"), 1);
  EXPECT_DOUBLE_EQ(f1("a a b b b", "b b a c"), 2.0 / 3);
  EXPECT_DOUBLE_EQ(f1("an-other the/cat", "another cat"), 0.5);
  EXPECT_EQ(f1("no", "yes"), 0);
  EXPECT_EQ(f1("", "yes"), 0);
  EXPECT_EQ(f1("the", "a"), 0);
}

// Values of the package rouge 1.0.1.
TEST(LongbenchScore, RougeLOfSummaries) {
  const auto rouge = [](const char* a, const char* b) {
    return longbench_score(kRougeL, a, b, {});
  };
  EXPECT_NEAR(rouge("The cat sat on the mat. It slept.", "A cat sat. It slept on the mat."),
              0.874999995,
              1e-12);
  EXPECT_NEAR(rouge("one two three four", "four three two one"), 0.24999999500000009, 1e-12);
  EXPECT_NEAR(rouge("w1 w2 w6 w7 w8. w1 w3 w8 w9 w5", "w1 w2 w3 w4 w5"), 0.6153846106508877, 1e-12);
  EXPECT_NEAR(rouge(" . .a b", "a b. c"), 0.6666666616666668, 1e-12);
  EXPECT_NEAR(rouge("the the the cat", "the cat the"), 0.4999999950000001, 1e-12);
  EXPECT_NEAR(rouge("a b c d e f g. h i j", "b a d c f e. j i h g a"), 0.3999999950000001, 1e-12);
  EXPECT_EQ(rouge("", "x"), 0);
}

TEST(LongbenchScore, ClassesThatAreNamed) {
  const auto share = [](const char* written, const char* answer, std::vector<std::string> all) {
    return longbench_score(kClass, written, answer, all);
  };
  // "individual" stands behind a class that is left out and is skipped, as published.
  EXPECT_EQ(share("Human individual or group",
                  "Human individual",
                  {"Human individual", "Human", "individual", "Human group"}),
            0.5);
  EXPECT_EQ(share("Date or Number", "Date", {"Date", "Number", "Code"}), 0.5);
  EXPECT_EQ(share("Number", "Date", {"Date", "Number"}), 0);
  EXPECT_EQ(share("nothing", "Date", {"Date", "Number"}), 0);
}

// Values of the package fuzzywuzzy 0.18.0 over difflib.
TEST(LongbenchScore, SimilarityOfTheFirstLineOfCode) {
  const auto code = [](const std::string& a, const std::string& b) {
    return longbench_score(kCode, a, b, {});
  };
  EXPECT_DOUBLE_EQ(code("\n\n# comment\n`code`\n    return x + 1\nz", "    return x+1"), 0.93);
  EXPECT_DOUBLE_EQ(code("int main() { return 0; }", "int main(void) { return 1; }"), 0.88);
  EXPECT_EQ(code("// only\n# comments", "x"), 0);
  EXPECT_EQ(code("same", "same"), 1);
  EXPECT_DOUBLE_EQ(code("été = données[0]", "ete = donnees[0]"), 0.81);
  // Characters that occur often in a long text are not looked for.
  std::string ab;
  std::string ba;
  for (int i = 0; i < 150; ++i) ab += "ab";
  for (int i = 0; i < 140; ++i) ba += "ba";
  EXPECT_EQ(code(ab + "c", ba + "cd"), 0);
}

class LongbenchTaskTest : public testing::Test {
 protected:
  LongbenchTaskTest() : corpus_(test::corpus_of(std::vector<int64_t>(100, 65), {100})) {
    corpus_.bos = 256;
    corpus_.eos = 257;
    config_.longbench.data = (folder_ / "data").string();
    std::filesystem::create_directory(folder_ / "data");
    for (const LongbenchTask& task : longbench_tasks()) {
      std::string lines;
      for (int i = 0; i < 4; ++i) lines += line(task, i).dump() + "\n";
      write(std::string(task.name), lines);
    }
  }
  static json line(const LongbenchTask& task, int i) {
    json sample{{"input", fmt::format("question {}?", i)},
                {"context", fmt::format("a {{context}} of {} words", i)},
                {"answers", {fmt::format("word{} and number{}", i, i * i), "other"}},
                {"all_classes", nullptr},
                {"length", 3000 * i}};
    if (task.metric == kClass) {
      sample["answers"] = {i % 2 == 0 ? "Date" : "Place"};
      sample["all_classes"] = {"Date", "Place", "Human"};
    }
    return sample;
  }
  void write(const std::string& name, const std::string& text) {
    test::write_file(folder_ / ("data/" + name + ".jsonl"), text);
  }
  json run(Writer scorer) {
    const auto task = task_named("longbench").make(corpus_, config_, {});
    return evaluate(scorer, *task, {.folder = folder_ / fmt::format("out{}", runs_++)});
  }
  std::string error() {
    try {
      task_named("longbench").make(corpus_, config_, {});
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  test::TempDir folder_;
  Corpus corpus_;
  EvaluationConfig config_;
  int runs_ = 0;
};

std::string best_answer(const Request& request) {
  return request.about.at("answers")[0].get<std::string>();
}

TEST_F(LongbenchTaskTest, OracleScoresOneAndAConstantAnswerNearNothing) {
  const json right = run(Writer(best_answer));
  EXPECT_NEAR(right.at("metrics").at("score").get<double>(), 1, 1e-6);
  EXPECT_EQ(right.at("metrics").at("samples"), 14 * 4);
  EXPECT_EQ(right.at("metrics").at("tasks").size(), 14U);
  EXPECT_EQ(right.at("metrics").at("scoring"), "upstream");
  EXPECT_EQ(right.at("series").at("groups").size(), 14U * 3);
  const json wrong = run(Writer([](const Request&) { return "qqq"; }));
  EXPECT_LT(wrong.at("metrics").at("score").get<double>(), 0.05);
}

TEST_F(LongbenchTaskTest, ScoringSaysWhoseFirstLineCounts) {
  const auto late = [](const Request& request) { return "hm\n" + best_answer(request); };
  const json upstream = run(Writer(late)).at("metrics").at("tasks");
  config_.longbench.scoring = LongbenchScoring::kFox;
  const json fox = run(Writer(late)).at("metrics");
  EXPECT_GT(upstream.at("hotpotqa").get<double>(), 0.7);
  EXPECT_EQ(upstream.at("trec"), 0);
  EXPECT_EQ(fox.at("tasks").at("hotpotqa"), 0);
  EXPECT_EQ(fox.at("scoring"), "fox");
  const json lead = run(Writer([](const Request& r) { return "\n\n" + best_answer(r) + "\nx"; }));
  EXPECT_NEAR(lead.at("metrics").at("tasks").at("trec").get<double>(), 1, 1e-6);
}

TEST_F(LongbenchTaskTest, PromptsAreThePublishedOnesWithTheirMiddleCut) {
  config_.longbench.tasks = {"trec", "repobench-p"};
  const auto task = task_named("longbench").make(corpus_, config_, {});
  const Requests requests = task->requests();
  const auto query = std::get<Generate>(requests.at(0).query);
  EXPECT_EQ(query.prompt.front(), 256);
  EXPECT_EQ(query.max_tokens, 64);
  EXPECT_EQ(corpus_.decode(query.prompt),
            "Please determine the type of the question below. Here are some examples of questions."
            "\n\na {context} of 0 words\nquestion 0?");
  EXPECT_EQ(corpus_.decode(std::get<Generate>(requests.at(5).query).prompt),
            "Please complete the code given below. \na {context} of 1 wordsquestion 1?Next line of "
            "code:\n");
  config_.longbench.length = 21;
  const auto cut = task_named("longbench").make(corpus_, config_, {});
  // Half of 21, BOS among the first ten.
  EXPECT_EQ(corpus_.decode(std::get<Generate>(cut->requests().at(0).query).prompt),
            "Please de"
            "uestion 0?");
  config_.longbench.length = 2;  // BOS, and a token at the end
  const auto least = task_named("longbench").make(corpus_, config_, {});
  EXPECT_EQ(corpus_.decode(std::get<Generate>(least->requests().at(0).query).prompt), "?");
  config_.longbench.length = 1;
  EXPECT_SAYS(error(), "--longbench.length = 1; expected >= 2: a token of either end");
}

TEST_F(LongbenchTaskTest, ATaskNamedTwiceCountsOnce) {
  config_.longbench.tasks = {"trec", "qasper", "trec"};
  const json right = run(Writer(best_answer));
  EXPECT_NEAR(right.at("metrics").at("score").get<double>(), 1, 1e-6);
  EXPECT_EQ(right.at("metrics").at("samples"), 2 * 4);
}

TEST_F(LongbenchTaskTest, BadFilesAreNamed) {
  config_.longbench.data = (folder_ / "nowhere").string();
  EXPECT_NE(error().find("download data.zip"), std::string::npos) << error();
  EXPECT_NE(error().find("--longbench.data=FOLDER"), std::string::npos) << error();
  config_.longbench.data = (folder_ / "data").string();
  config_.longbench.tasks = {"trek"};
  EXPECT_NE(error().find("no task is called 'trek'"), std::string::npos) << error();
  config_.longbench.tasks = {"trec"};
  const LongbenchTask& trec = longbench_task_named("trec");
  json broken = line(trec, 1);
  broken.erase("all_classes");
  write("trec", line(trec, 0).dump() + "\n\n" + broken.dump() + "\n{\"input\": 3}\nhello\n");
  EXPECT_NE(error().find("trec.jsonl:5 is not a JSON object"), std::string::npos) << error();
  write("trec", line(trec, 0).dump() + "\n\n" + broken.dump() + "\n{\"input\": 3}\n");
  EXPECT_NE(error().find("trec.jsonl:3 has no texts in \"all_classes\""), std::string::npos)
      << error();
  config_.longbench.skip_bad = true;
  const json result = run(Writer(best_answer));
  EXPECT_EQ(result.at("metrics").at("skipped"), 2);
  EXPECT_EQ(result.at("metrics").at("samples"), 1);
  write("trec", "\n");
  EXPECT_NE(error().find("has no sample"), std::string::npos) << error();
}

}  // namespace
}  // namespace reynard::evaluation
