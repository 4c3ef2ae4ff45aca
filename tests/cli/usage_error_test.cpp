// Command lines that are no command's: names that were slips, words behind --, options given twice;
// and where help is.

#include "tests/cli/bad_input.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace {

using namespace reynard;
using test::BadInput;
using test::ProgramResult;

TEST_F(BadInput, KeysGivenTwiceAreNamed) {
  test::write_file(folder_ / "a.toml", "[run]\nfolder = \"run\"\n");
  EXPECT_EQ(error_of({"train", "a.toml", "--training.tokens=2000", "--training.tokens=3000"}),
            "training.tokens is given twice, as 2000 and as 3000; give it once\n");
  // The option is another name of the key.
  for (const char* command : {"train", "sweep"}) {
    EXPECT_EQ(error_of({command, "a.toml", "--device=cpu", "--training.device=cuda"}),
              "training.device is given twice, as cuda and as cpu; give it once\n");
  }
  EXPECT_EQ(error_of({"sweep",
                      "a.toml",
                      "--grid",
                      "optimizer.learning_rate=1e-3,1e-4",
                      "--optimizer.learning_rate=2e-3"}),
            "optimizer.learning_rate is given twice, as 2e-3 and as 1e-3; give it once\n");
}

TEST_F(BadInput, OptionsThatNothingWouldReadAreErrors) {
  for (const char* option : {"--device", "--dtype"}) {
    EXPECT_EQ(missing(error_of({"cost",
                                "model",
                                option,
                                std::string(option) == "--device" ? "cpu" : "bf16",
                                "--lengths",
                                "512"}),
                      std::string(option) + " requires --measure"),
              "");
  }
  test::write_file(folder_ / "a.txt", "text");
  EXPECT_EQ(
      error_of({"prepare", "a.txt", "--field", "content", "-o", "out"}),
      "--field content: none of the files is .jsonl, whose lines have fields; leave it out\n");
  EXPECT_EQ(
      error_of({"tokenizer", "train", "a.txt", "--field", "content", "-o", "t.json"}),
      "--field content: none of the files is .jsonl, whose lines have fields; leave it out\n");
}

}  // namespace
