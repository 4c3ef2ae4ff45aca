// Every command that computes with a model whose config prunes says by which rule.

#include "tests/cli/train_command.h"
#include "tests/support/program.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

using namespace reynard;
using test::ProgramResult;
using test::TrainCommand;

TEST_F(TrainCommand, EveryCommandSaysByWhichRuleItPrunes) {
  const auto note_of = [&](const std::vector<std::string>& arguments) {
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result.errors.substr(0, result.errors.find(','));
  };
  const std::string tight = "pruning: tight rule";
  EXPECT_EQ(note_of({"train",
                     "tiny.toml",
                     "--run.folder=run",
                     "--training.tokens=128",
                     "--model.attention.log_pruning_tolerance=-10"}),
            tight);
  test::write_file(folder_ / "ids.json", "[[1, 2, 3]]");
  EXPECT_EQ(note_of({"score", "run", "--ids", "ids.json"}), tight);
  EXPECT_EQ(note_of({"generate", "run", "line", "-m", "2"}), tight);
  EXPECT_EQ(note_of({"eval",
                     "run",
                     "--text",
                     "text/held_out.tokens",
                     "--task",
                     "per_position_loss",
                     "--length",
                     "32"}),
            tight);
  EXPECT_EQ(note_of({"train",
                     "tiny.toml",
                     "--run.folder=other",
                     "--training.tokens=128",
                     "--model.attention.log_pruning_tolerance=-10",
                     "--model.attention.pruning_rule=published"}),
            "pruning: published rule");
}

}  // namespace
