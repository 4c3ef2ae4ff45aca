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

TEST_F(BadInput, SlipsInTheNamesOfCommandsAreRecognised) {
  const std::pair<std::vector<std::string>, const char*> slips[] = {
      {{"trian", "a.toml"}, "trian is no command; did you mean train?\n"},
      {{"evl"}, "evl is no command; did you mean eval?\n"},
      {{"genrate", "model"}, "genrate is no command; did you mean generate?\n"},
      {{"convrt"}, "convrt is no command; did you mean convert?\n"},
      {{"bench", "attn"}, "bench attn is no command; did you mean attention?\n"},
      {{"tokenizer", "encod"}, "tokenizer encod is no command; did you mean encode?\n"},
      {{"xyzzy"}, "xyzzy is no command; see `reynard --help`\n"},
      {{"--verison"}, "--verison is not a known option; did you mean --version?\n"},
      {{"--nothing"}, "--nothing is not a known option; see `reynard --help`\n"},
  };
  for (const auto& [arguments, message] : slips) EXPECT_EQ(error_of(arguments), message);
}

TEST_F(BadInput, HelpIsACommandToo) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> helps = {
      {{"help"}, {"--help"}},
      {{"help", "train"}, {"train", "--help"}},
      {{"help", "tokenizer", "train"}, {"tokenizer", "train", "--help"}}};
  for (const auto& [words, option] : helps) {
    const ProgramResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_EQ(result.output, run(option).output);
  }
  EXPECT_EQ(error_of({"help", "trian"}), "trian is no command; did you mean train?\n");
  EXPECT_EQ(error_of({"help", "tokenizer", "encod"}),
            "tokenizer encod is no command; did you mean encode?\n");
}

TEST_F(BadInput, WordsBehindTwoDashesAreNoOptions) {
  EXPECT_EQ(error_of({"generate", "model", "--", "-x", "-m", "4"}),
            "-m 4: more than generate takes; words behind -- are no options: give options before "
            "it; see `reynard generate --help`\n");
  EXPECT_EQ(error_of({"generate", "model", "-x"}),
            "-x is not a known option; a PROMPT that begins with - goes behind --; see `reynard "
            "generate --help`\n");
  EXPECT_EQ(missing(run({"generate", "--help"}).output, "reynard generate models/fox -t 1 -- "),
            "");
}

TEST_F(BadInput, OptionsGivenTwiceAreNamed) {
  EXPECT_EQ(error_of({"generate", "model", "a", "-m", "4", "--max-tokens", "5", "-m", "6"}),
            "--max-tokens is given 3 times; give it once; see `reynard generate --help`\n");
  EXPECT_EQ(error_of({"cost", "model", "--dtype", "f32", "--dtype=bf16"}),
            "--dtype is given 2 times; give it once; see `reynard cost --help`\n");
}

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
