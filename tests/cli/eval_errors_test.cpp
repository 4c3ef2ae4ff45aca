// What reynard eval cannot do, with the option that mends it.

#include "tests/cli/eval_command.h"

#include <filesystem>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using namespace reynard;
using test::EvalCommand;

TEST_F(EvalCommand, SaysWhichOptionMendsWhatItCannotDo) {
  std::vector<std::string> eval = {"eval", "run", "--text", "text.txt", "--task", "inside"};
  const auto with = [&](const char* option, const char* value) {
    std::vector<std::string> arguments = eval;
    arguments.insert(arguments.end(), {option, value});
    return arguments;
  };
  expect_error(with("--length", "99999999999"), "a smaller --length or --inside.length\n");
  test::write_file(folder_ / "file", "");
  expect_error(with("-o", "file/eval"),
               "file/eval: Not a directory; give another folder with -o\n");
  fs::create_directories(folder_ / "run/eval/inside.jsonl");
  expect_error(eval, "inside.jsonl: Is a directory; give another folder with -o\n");
}

TEST_F(EvalCommand, BadInputIsOneLine) {
  const auto eval = [](std::vector<std::string> more) {
    std::vector<std::string> arguments{"eval", "run", "--text", "text.txt"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  };
  expect_error({"eval", "nowhere", "--text", "text.txt"},
               "nowhere: does not exist; expected the folder of a model");
  expect_error({"eval", "run", "--text", "missing.txt"}, "missing.txt does not exist");
  expect_error(eval({"--task", "forgetting"}), "no task is called 'forgetting'");
  expect_error(eval({"--task", "lm-eval"}), "longbench, lm_eval");
  expect_error(eval({"--dtype", "f8"}), "--dtype = f8; expected f32, bf16 or int8");
  expect_error(eval({"--train-length", "-4"}), "--train-length: -4; expected a number above 0");
  expect_error(eval({"--length", "0"}), "--length: 0; expected a number above 0");
  expect_error(eval({"--length", "4611686018427387904", "--task", "passkey"}),
               "--length = 4611686018427387904; expected at most 2^40 tokens");
  expect_error(eval({"--train-length", "4611686018427387904", "--task", "passkey"}),
               "--train-length = 4611686018427387904; expected at most 2^40 tokens");
  expect_error(eval({"--task", "passkey", "--passkey.lengths=1099511627777"}),
               "--passkey.lengths = 1099511627777; must be between 1 and 2^40");
  expect_error(eval({"--task", "needle", "--needle.trials=9223372036854775807"}),
               "--needle.trials = 9223372036854775807; must be between 1 and 2^20");
  expect_error(eval({"--length", "6000", "--task", "per_position_loss"}),
               "no document has 6000 tokens");
  expect_error(eval({"--inside.length=1"}),
               "--inside.length = 1; expected a multiple of --inside.cells = 32, 32");
  expect_error(eval({"--task", "dictionary", "--length", "1"}),
               "--dictionary.lengths = 1; expected >= 10: one definition");
  expect_error(eval({"--published-lengths", "--task", "per_position_loss"}),
               "no document has 65536 tokens");
  expect_error(eval({"--published-lengths", "--per_position_loss.length=6000"}),
               "no document has 6000 tokens");
  expect_error(eval({"--published-lengths", "--length", "64"}), "not together with --length");
  expect_error(eval({"--forgetting_curve.gird=code"}), "gird");
  expect_error(eval({"--passkey.length=9"}), "did you mean passkey.lengths?");
  expect_error(eval({"--passkey.lengths=9"}), "the task passkey is not measured; add it to --task");
  expect_error(
      eval({"--task", "dictionary", "--dictionary.first_token=200"}),
      "--dictionary.first_token=200 --dictionary.vocabulary=64; expected a sum of at most 25");
  expect_error(eval({"--task", "inside", "--inside.cells=100000"}),
               "cells = 100000; expected at most");
  expect_error({"eval", "run", "--txt", "text.txt"}, "txt");
  expect_error(eval({"--task", "babilong", "--babilong.facts=."}),
               "has no qa1_*.txt; download https://www.thespermwhale.com");
  test::write_file(folder_ / "binary.txt", std::string_view("a\0b", 3));
  expect_error({"eval", "run", "--text", "binary.txt"}, "binary.txt");
  test::write_file(folder_ / "cut.tokens", "{\"format\"");
  expect_error({"eval", "run", "--text", "cut.tokens"}, "cut.tokens");
}

}  // namespace
