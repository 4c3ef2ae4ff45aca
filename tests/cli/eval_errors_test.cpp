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

}  // namespace
