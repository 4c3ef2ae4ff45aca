// reynard prepare as a user runs it: what it prints, its exit codes, and that bad input is one line
// that says what is wrong and where.

#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

namespace {

using namespace reynard;
using test::ProgramResult;

class PrepareCommand : public testing::Test {
 protected:
  ProgramResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "prepare");
    return test::run_program({.arguments = std::move(arguments), .folder = folder_.path()});
  }
  void expect_error(std::vector<std::string> arguments, const std::string& message) {
    const ProgramResult result = run(std::move(arguments));
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_EQ(result.errors, "reynard: " + message + "\n");
    EXPECT_EQ(result.output, "");
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out/train.tokens"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out/train.tokens.partial"));
  }
  test::TempDir folder_;
};

TEST_F(PrepareCommand, PrintsWhatItWroteAndWhatItLeftOut) {
  std::filesystem::create_directory(folder_ / "text");
  test::write_file(folder_ / "text/a.txt", "hello");
  test::write_file(folder_ / "text/b.bin", std::string_view("\0", 1));
  const ProgramResult result = run({"text", "-o", "out"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(result.output,
            "out/train.tokens: 7 tokens in 1 document, 5 B of text\n"
            "1 file read\n"
            "left out: files that are not UTF-8 text: 1\n"
            "  text/b.bin: byte 0: a NUL byte: a binary file; expected UTF-8 text\n");
  EXPECT_EQ(result.errors, "");  // the bar is for terminals
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/train.tokens"));
}

TEST_F(PrepareCommand, NamesFiveOfWhatItLeftOutAndAllWithJson) {
  std::filesystem::create_directory(folder_ / "text");
  test::write_file(folder_ / "text/a.txt", "hello");
  test::write_file(folder_ / "text/.secret", "hidden");
  for (const char* name : {"b", "c", "d", "e", "f", "g", "h"}) {
    test::write_file(folder_ / "text" / name, std::string_view("\0", 1));
  }
  const ProgramResult people = run({"text", "-o", "out"});
  EXPECT_SAYS(people.output,
              "1 file read\n"
              "left out: hidden files and folders: 1\n"
              "  text/.secret\n"
              "left out: files that are not UTF-8 text: 7\n"
              "  text/b: byte 0");
  EXPECT_SAYS(people.output, "  text/f: byte 0");
  EXPECT_FALSE(test::says(people.output, "text/g"));
  EXPECT_SAYS(people.output, "\n  and 2 more; --json names all\n");

  const auto json = nlohmann::json::parse(run({"text", "-o", "out", "--json"}).output);
  EXPECT_EQ(json.at("files_read"), 1);
  EXPECT_EQ(json.at("written"),
            nlohmann::json::parse(R"([{"path": "out/train.tokens", "tokens": 7, "documents": 1,
                                       "text_bytes": 5}])"));
  const nlohmann::json& binary = json.at("left_out").at(1);
  EXPECT_EQ(binary.at("reason"), "files that are not UTF-8 text");
  EXPECT_EQ(binary.at("count"), 7);
  ASSERT_EQ(binary.at("names").size(), 7U);
  EXPECT_SAYS(binary.at("names").at(6).get<std::string>(), "text/h: byte 0");
}

TEST_F(PrepareCommand, BadTextIsOneLine) {
  expect_error({"none.txt", "-o", "out"}, "none.txt: there is no such file or folder");
  test::write_file(folder_ / "empty.txt", "");
  expect_error({"empty.txt", "-o", "out"}, "empty.txt: is empty; expected text");
  test::write_file(folder_ / "binary", std::string_view("ELF\0\1", 5));
  expect_error({"binary", "-o", "out"},
               "binary: byte 3: a NUL byte: a binary file; expected UTF-8 text");
  test::write_file(folder_ / "a.txt", "hello");
  ASSERT_EQ(run({"a.txt", "-o", "data"}).exit_code, 0);
  expect_error({"data/train.tokens", "-o", "out"},
               "data/train.tokens: byte 0: a token file of `reynard prepare`; expected UTF-8 text");
  test::write_file(folder_ / "latin1.txt", "caf\xe9\n");
  expect_error({"latin1.txt", "-o", "out"},
               "latin1.txt: byte 3: is not UTF-8; convert the file first, for example with `iconv "
               "-f latin1 -t utf-8`");
}

TEST_F(PrepareCommand, WrongUsageIsOneLine) {
  expect_error({}, "INPUT is required; see `reynard prepare --help`");
  expect_error({"a.txt"}, "--output is required; see `reynard prepare --help`");
  expect_error({"a.txt", "--output=", "--threads", "1"},
               "prepare: no output folder; give one with --output FOLDER");
  expect_error({"a.txt", "-o", "out", "--min-bytes", "many"},
               "--min-bytes: many is no whole number; see `reynard prepare --help`");
  expect_error({"a.txt", "-o", "out", "--held-out", "2"},
               "prepare: --held-out 2; expected at least 0 and less than 1");
  test::write_file(folder_ / "a.txt", "text");
  expect_error({"a.txt", "-o", "out", "--tokenizer", "bpe"},
               "tokenizer = \"bpe\"; expected byte, or a file or folder that exists");
  expect_error({"a.txt", "-o", "out", "--roll-min-tokens", "2"},
               "--roll-min-tokens requires --roll; see `reynard prepare --help`");
  expect_error({"a.txt", "-o", "a.txt/x"}, "a.txt/x: cannot be made a folder: Not a directory");
}

TEST_F(PrepareCommand, AFullDiskIsAnErrorAndLeavesTheEarlierFile) {
  test::write_file(folder_ / "a.txt", "text");
  ASSERT_EQ(run({"a.txt", "-o", "out"}).exit_code, 0);
  const std::string earlier = test::read_file(folder_ / "out/train.tokens");
  test::write_file(folder_ / "b.txt", std::string(100000, 'x'));
  const ProgramResult result = test::run_program({.arguments = {"prepare", "b.txt", "-o", "out"},
                                                  .folder = folder_.path(),
                                                  .file_limit = 50000});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.errors,
            "reynard: out/train.tokens.partial: cannot be written: File too large\n");
  EXPECT_EQ(test::read_file(folder_ / "out/train.tokens"), earlier);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/train.tokens.partial"));
}

TEST_F(PrepareCommand, ThreadsThatCannotBeStartedAreAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's shadow memory is beyond any limit";
#endif
  std::filesystem::create_directory(folder_ / "text");
  for (int i = 0; i < 400; ++i) test::write_file(folder_ / ("text/" + std::to_string(i)), "text");
  // The stacks of 400 threads are larger.
  const ProgramResult result =
      test::run_program({.arguments = {"prepare", "text", "-o", "out", "--threads", "400"},
                         .folder = folder_.path(),
                         .memory_limit = int64_t{600} << 20});
  EXPECT_EQ(result.exit_code, 2) << result.errors;
  EXPECT_TRUE(result.errors.starts_with("reynard: prepare: --threads 400: only ")) << result.errors;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(PrepareCommand, LeavesNoFolderWhereNothingWasPrepared) {
  test::write_file(folder_ / "a.txt", "not \xff text");
  EXPECT_EQ(run({"a.txt", "-o", "out"}).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

// The bar shrinks; what it says is not cut.
TEST(Program, ProgressFitsIntoTheTerminal) {
  const test::TempDir folder;
  const std::string command = "timeout 100 " REYNARD_TEST_PYTHON " " REYNARD_SOURCE_DIR
                              "/tests/cli/progress_terminal.py " REYNARD_BINARY_DIR
                              "/bin/reynard " +
                              folder.path().string();
  const int status = std::system(command.c_str());
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "there are no terminals";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(Program, UnknownCommandsAreOneLine) {
  const ProgramResult result = test::run_program({.arguments = {"trian"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.errors, "reynard: trian is no command; did you mean train?\n");
}

TEST(Program, OutputThatIsLostIsAnError) {
  for (const char* option : {"--version", "--help"}) {
    const test::ProgramResult result =
        test::run_program({.arguments = {option}, .output_file = "/dev/full"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.errors, "reynard: standard output cannot be written; is the disk full?\n");
  }
}

TEST(Program, HelpAndVersionGoToStdout) {
  for (const char* option : {"--help", "--version"}) {
    const ProgramResult result = test::run_program({.arguments = {option}});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_NE(result.output, "");
    EXPECT_EQ(result.errors, "");
  }
}

}  // namespace
