// Help in a terminal: as wide as it, and the same words whatever its width.

#include "tests/cli/bad_input.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace reynard;
using test::BadInput;

class Help : public BadInput {
 protected:
  ~Help() override { ::unsetenv("COLUMNS"); }

  std::string help_of(std::vector<std::string> words, const char* columns) {
    columns != nullptr ? ::setenv("COLUMNS", columns, 1) : ::unsetenv("COLUMNS");
    words.emplace_back("--help");
    return run(words).output;
  }
};

std::vector<std::string> lines_in(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_in(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// The names that the help of a command lists under "Subcommands:".
std::vector<std::string> commands_in(const std::string& help) {
  std::vector<std::string> names;
  bool listed = false;
  for (const std::string& line : lines_in(help)) {
    if (listed && line.starts_with("  ") && line.at(2) != ' ') names.push_back(words_in(line)[0]);
    if (line == "Subcommands:") listed = true;
    if (line.empty()) listed = false;
  }
  return names;
}

// An example, which is to be copied, or one word that is longer than the line.
bool may_be_long(const std::string& line) {
  const std::size_t begin = line.find_first_not_of(' ');
  return (begin == 2 && line.find("  ", begin) == line.npos) || words_in(line).size() == 1;
}

void expect_width(const std::string& help, std::size_t most) {
  for (const std::string& line : lines_in(help)) {
    EXPECT_TRUE(line.size() <= most || may_be_long(line)) << line;
  }
}

TEST_F(Help, IsAsWideAsTheTerminal) {
  std::vector<std::vector<std::string>> commands{{}};
  for (const std::string& name : commands_in(help_of({}, nullptr))) {
    commands.push_back({name});
    if (name != "bench" && name != "tokenizer") continue;
    for (const std::string& own : commands_in(help_of({name}, nullptr))) {
      commands.push_back({name, own});
    }
  }
  EXPECT_GT(commands.size(), 30U);
  for (const auto& words : commands) {
    const std::string help = help_of(words, "80");
    expect_width(help, 80);
    EXPECT_EQ(words_in(help), words_in(help_of(words, "100000")));
  }
  expect_width(help_of({"eval"}, nullptr), 100);
  expect_width(help_of({"eval"}, "0"), 60);
}

TEST_F(Help, LinesGoOnBelowTheirText) {
  const std::string help = help_of({"score"}, "80");
  EXPECT_NE(
      help.find("  --tokenizer TEXT Needs: --texts\n"
                "                              of the texts; default: the one in the model's\n"
                "                              folder\n"),
      std::string::npos)
      << help;
  EXPECT_NE(help.find("\nOne JSON line per list or text: its mean loss and the log-probability of "
                      "every\ntoken but the first.\n"),
            std::string::npos)
      << help;
}

}  // namespace
