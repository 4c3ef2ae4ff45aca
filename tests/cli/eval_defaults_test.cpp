// The tasks of reynard eval that run where none is named: which of them a short text leaves out.

#include "tests/cli/eval_command.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>

namespace {

namespace fs = std::filesystem;
using namespace reynard;
using test::EvalCommand;
using test::ProgramResult;

// Nobody asked for each of the tasks that run by default: what the text is too short for is named
// and left out.
TEST_F(EvalCommand, ShortDocumentsAreMeasuredByWhatTheyGive) {
  std::string lines;
  for (int i = 0; i < 30; ++i)
    lines += fmt::format("{{\"text\": \"line {} of a few words\"}}\n", i);
  test::write_file(folder_ / "short.jsonl", lines);
  const auto eval = [&](const char* option) {
    return run({"eval", "run", "--text", "short.jsonl", kFewPoints, option});
  };
  const ProgramResult result = eval("--per_position_loss.across_documents=true");
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  for (const char* task : {"pruning", "inside", "text_sample"}) {
    EXPECT_NE(result.errors.find(fmt::format("left out: {}: no document has", task)),
              std::string::npos)
        << result.errors;
    EXPECT_FALSE(fs::exists(folder_ / fmt::format("run/eval/{}.json", task)));
  }
  for (const char* task : {"per_position_loss", "forgetting_curve"}) {
    EXPECT_TRUE(fs::exists(folder_ / fmt::format("run/eval/{}.json", task))) << task;
  }
  use_empty_vega();
  const ProgramResult report = run({"report", "run", "-o", "page.html"});
  EXPECT_EQ(report.exit_code, 0) << report.errors;
  // What was asked for is an error.
  expect_error({"eval", "run", "--text", "short.jsonl", "--task", "pruning"},
               "pruning: no document has 64 tokens");
  expect_error({"eval", "run", "--text", "short.jsonl", "--pruning.length=50"},
               "pruning: no document has 50 tokens");
  test::write_file(folder_ / "word.txt", "word");
  expect_error({"eval", "run", "--text", "word.txt"},
               "of the tasks that run by default none can be measured on this text");
}

// No text helps.
TEST_F(EvalCommand, MistakesInSettingsAreErrorsOfTasksThatNobodyNamed) {
  expect_error({"eval", "run", "--text", "text.txt", "--length", "1"},
               "forgetting_curve: length = 1; expected >= 2");
  EXPECT_FALSE(fs::exists(folder_ / "run/eval"));
}

}  // namespace
