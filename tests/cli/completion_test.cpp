// The function that completes commands in a shell, as bash calls it.

#include "reynard/process/child_process.h"
#include "tests/cli/bad_input.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace {

using namespace reynard;
using test::BadInput;

class Completion : public BadInput {
 protected:
  // What bash offers for the last of the words, one a line.
  std::string offered(const std::string& words) {
    const std::filesystem::path script = folder_.path() / "completion.bash";
    std::ofstream(script) << run({"completion"}).output << "COMP_WORDS=(reynard " << words
                          << ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_reynard\n"
                          << "printf '%s\\n' \"${COMPREPLY[@]}\"\n";
    process::ChildProcess bash({.arguments = {"bash", script.string()}, .read_output = true});
    std::string text;
    for (std::string part = bash.read_output(); !part.empty(); part = bash.read_output()) {
      text += part;
    }
    EXPECT_EQ(bash.wait().exit_code, 0);
    return text;
  }
};

TEST_F(Completion, OffersCommands) {
  EXPECT_EQ(offered("pre"), "prepare\n");
  EXPECT_EQ(offered("tokenizer tr"), "train\n");
  EXPECT_EQ(offered("tokenizer ''"), "encode\ndecode\ntrain\n");
  EXPECT_EQ(offered("''").find("train\n"), offered("''").find("sweep\n") - 6);
}

TEST_F(Completion, OffersOptionsAndKeysOfTheCommand) {
  EXPECT_EQ(offered("train a.toml --res"), "--resume\n");
  EXPECT_EQ(offered("train a.toml --training.min"), "--training.minutes=\n");
  EXPECT_EQ(offered("eval runs/train --needle.dep"), "--needle.depths=\n");
  EXPECT_EQ(offered("score model --te"), "--texts\n");  // of a group of options
  EXPECT_EQ(offered("tokenizer train --vocab"), "--vocab-size\n");
  EXPECT_EQ(offered("tokenizer train --training.min"), "\n");
}

// Where nothing is offered bash offers files.
TEST_F(Completion, LeavesFilesToTheShell) {
  EXPECT_EQ(offered("train conf"), "\n");
  EXPECT_EQ(offered("generate train"), "\n");
}

}  // namespace
