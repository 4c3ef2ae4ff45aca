// How an evaluation goes on that was cut short, and whose files it leaves alone.

#include "reynard/evaluation/evaluate.h"

#include "reynard/evaluation/registry.h"
#include "reynard/tensor/error.h"
#include "tests/evaluation/copier.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace reynard::evaluation {
namespace {

TEST(Evaluate, GoesOnWhereAnEarlierRunStopped) {
  const test::TempDir whole;
  const test::TempDir cut;
  const Corpus corpus = counting_corpus(1000);
  const EvaluateOptions small_batches{.folder = cut.path(), .batch_tokens = 200};
  const auto& entry = task_named("forgetting_curve");
  Copier all(33);
  const auto expected = evaluate(
      all, *entry.make(corpus, small_config(), {}), {.folder = whole.path(), .batch_tokens = 200});
  EXPECT_EQ(all.answered, 48);

  Copier first(33);
  first.fail_after = 20;
  EXPECT_THROW(evaluate(first, *entry.make(corpus, small_config(), {}), small_batches), Error);
  // A crash in the middle of a line leaves a piece of it.
  const auto log = cut.path() / "forgetting_curve.jsonl";
  test::write_file(log, test::read_file(log) + R"({"id":"text copy 64 2","hi)");
  Copier second(33);
  const auto resumed = evaluate(second, *entry.make(corpus, small_config(), {}), small_batches);
  EXPECT_LT(second.answered, 48);
  EXPECT_GT(second.answered, 0);
  EXPECT_EQ(resumed.at("metrics"), expected.at("metrics"));
  EXPECT_EQ(resumed.at("series"), expected.at("series"));
  EXPECT_EQ(resumed.at("effort").at("reused_samples").get<int64_t>() + second.answered, 48);

  Copier third(33);
  evaluate(third, *entry.make(corpus, small_config(), {}), small_batches);
  EXPECT_EQ(third.answered, 0);
}

TEST(Evaluate, SamplesThatNobodyAsksForAreLeftOut) {
  const test::TempDir folder;
  const Corpus corpus = counting_corpus(1000);
  const auto& entry = task_named("forgetting_curve");
  Copier first(33);
  const EvaluateOptions options{.folder = folder.path()};
  const auto expected = evaluate(first, *entry.make(corpus, small_config(), {}), options);
  const auto log = folder / "forgetting_curve.jsonl";
  const std::string lines = test::read_file(log);
  const std::string id = R"("id":"text copy 64 2")";
  ASSERT_NE(lines.find(id), std::string::npos);
  std::string line = lines.substr(0, lines.find('\n', lines.find(id)) + 1);
  line = line.substr(line.rfind('\n', line.size() - 2) + 1);
  line.replace(line.find(id), id.size(), R"("id":"text copy 64 3")");
  test::write_file(log, lines + line);
  Copier second(33);
  const auto again = evaluate(second, *entry.make(corpus, small_config(), {}), options);
  EXPECT_EQ(second.answered, 0);
  EXPECT_EQ(again.at("effort").at("samples"), 48);
  EXPECT_EQ(again.at("series"), expected.at("series"));
}

TEST(Evaluate, MeasuresAnewWhenSettingsOrModelDiffer) {
  const test::TempDir folder;
  const Corpus corpus = counting_corpus(1000);
  const auto& entry = task_named("forgetting_curve");
  EvaluateOptions options{.folder = folder.path(), .identity = {{"model", "a"}}};
  Copier first(33);
  evaluate(first, *entry.make(corpus, small_config(), {}), options);

  options.identity = {{"model", "b"}};
  Copier other_model(5);
  const auto summary = evaluate(other_model, *entry.make(corpus, small_config(), {}), options);
  EXPECT_EQ(other_model.answered, 48);
  EXPECT_EQ(summary.at("metrics").at("fine_length").at("text"), "0");

  EvaluationConfig config = small_config();
  config.forgetting_curve.seed = 1;
  Copier other_seed(33);
  evaluate(other_seed, *entry.make(corpus, config, {}), options);
  EXPECT_EQ(other_seed.answered, 48);
}

// How fast the model answered is known from when it was asked.
TEST(Evaluate, EffortIsThatOfTheLastRunThatAskedTheModel) {
  const test::TempDir folder;
  const Corpus corpus = counting_corpus(600);
  const auto task = task_named("per_position_loss").make(corpus, small_config(), {});
  Copier scorer(0);
  EvaluateOptions options{.folder = folder.path(), .identity = {{"model", "a"}}};
  const auto effort_of = [&] { return evaluate(scorer, *task, options).at("effort"); };
  const nlohmann::json first = effort_of();
  EXPECT_GT(first.at("tokens"), 0);
  EXPECT_EQ(first.at("reused_samples"), 0);
  for (int i = 0; i < 2; ++i) {
    const nlohmann::json again = effort_of();
    for (const char* key : {"samples", "tokens", "seconds", "peak_memory_bytes"}) {
      EXPECT_EQ(again.at(key), first.at(key)) << key;
    }
    EXPECT_EQ(again.at("reused_samples"), first.at("samples"));
  }
  // Nothing is known of samples without their summary, or with that of another model.
  const std::filesystem::path summary = folder / "per_position_loss.json";
  nlohmann::json other = nlohmann::json::parse(test::read_file(summary));
  other["identity"]["model"] = "b";
  test::write_file(summary, other.dump());
  EXPECT_EQ(effort_of().at("tokens"), 0);
  std::filesystem::remove(summary);
  EXPECT_EQ(effort_of().at("tokens"), 0);
}

TEST(Evaluate, SaysWhichLinesAreMeasuredAgain) {
  const test::TempDir folder;
  const std::filesystem::path log = folder / "per_position_loss.jsonl";
  const Corpus corpus = counting_corpus(600);
  const auto task = task_named("per_position_loss").make(corpus, small_config(), {});
  Copier scorer(0);
  const auto whole = evaluate(scorer, *task, {.folder = folder.path()});
  std::string lines = test::read_file(log);
  lines[lines.find('\n') + 1] = '!';
  test::write_file(log, lines);
  std::string said;
  const auto again = evaluate(
      scorer, *task, {.folder = folder.path(), .say = [&](const auto& line) { said += line; }});
  EXPECT_SAYS(said,
              "per_position_loss.jsonl: 1 line that is damaged or there twice is left out; what is "
              "missing is measured again");
  EXPECT_EQ(again.at("effort").at("reused_samples"), 3);
  EXPECT_EQ(again.at("metrics"), whole.at("metrics"));
}

TEST(Evaluate, FilesOfOthersStayAsTheyAre) {
  const test::TempDir folder;
  const Corpus corpus = counting_corpus(600);
  const auto task = task_named("per_position_loss").make(corpus, small_config(), {});
  Copier scorer(0);
  const auto refused = [&](const std::string& name, const std::string& text, bool only_resume) {
    test::write_file(folder / name, text);
    const std::string error = test::error_of(
        [&] { evaluate(scorer, *task, {.folder = folder.path(), .only_resume = only_resume}); });
    EXPECT_EQ(test::read_file(folder / name), text);
    std::filesystem::remove(folder / name);
    return error;
  };
  for (const bool only_resume : {false, true}) {
    EXPECT_SAYS(refused("per_position_loss.jsonl", "{\"text\": \"one\"}\n", only_resume),
                "per_position_loss.jsonl exists and is not a sample log; remove it or give another "
                "folder with -o");
    for (const char* text : {"notes", "[1]", "{\"task\": \"per_position_loss\"}"}) {
      EXPECT_SAYS(refused("per_position_loss.json", text, only_resume),
                  "per_position_loss.json exists and is not a summary of eval; remove it or give "
                  "another folder with -o");
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  test::write_file(folder / "per_position_loss.json", "");
  for (int i = 0; i < 2; ++i) evaluate(scorer, *task, {.folder = folder.path()});  // its own
}

TEST(Evaluate, FolderThatCannotBeMadeIsAnError) {
  const test::TempDir folder;
  test::write_file(folder / "file", "");
  const Corpus corpus = counting_corpus(1000);
  const auto task = task_named("forgetting_curve").make(corpus, small_config(), {});
  Copier copier(1);
  EXPECT_THROW(evaluate(copier, *task, {.folder = folder / "file" / "eval"}), Error);
}

// As the published script: the lengths that fit make the curve.
TEST(Evaluate, OutOfMemoryKeepsTheLengthsThatFit) {
  const test::TempDir folder;
  const Corpus corpus = counting_corpus(1000);
  Copier copier(1000);
  copier.most_context = 70;  // targets of 48 tokens need 49 + 1 + 24 before the scored ones
  const auto task = task_named("forgetting_curve").make(corpus, small_config(), {});
  const auto error = [&](Task& t) -> std::string {
    try {
      evaluate(copier, t, {.folder = folder.path(), .batch_tokens = 1});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error(*task).find("out of memory at sample \"text copy 48 0\" of 98 tokens"),
            std::string::npos)
      << error(*task);
  const auto summary = nlohmann::json::parse(test::read_file(folder / "forgetting_curve.json"));
  EXPECT_EQ(summary.at("series").at("points").size(), 5);  // 8, 16, ..., 40
  EXPECT_EQ(summary.at("metrics").at("fine_length").at("text"), ">40");
  EXPECT_NE(summary.at("stopped").get<std::string>().find("out of memory"), std::string::npos);
  // Rows of equal length: none fits.
  const auto loss = task_named("per_position_loss").make(corpus, small_config(), {});
  copier.most_context = -1;
  EXPECT_NE(error(*loss).find("per_position_loss: out of memory"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder / "per_position_loss.json"));
}

}  // namespace
}  // namespace reynard::evaluation
