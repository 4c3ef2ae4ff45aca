#pragma once
// What the program says to wrong input: it names what and where, ends with code 2 and leaves
// nothing half-written.

#include "tests/support/files.h"
#include "tests/support/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace reynard::test {

class BadInput : public testing::Test {
 protected:
  ProgramResult run(std::vector<std::string> arguments) {
    return run_program({.arguments = std::move(arguments), .folder = folder_.path()});
  }
  // The message without the program's name; checks the exit code.
  std::string error_of(std::vector<std::string> arguments) {
    const ProgramResult result = run(std::move(arguments));
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_TRUE(result.errors.starts_with("reynard: ")) << result.errors;
    return result.errors.substr(std::min<size_t>(9, result.errors.size()));
  }
  static std::string missing(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos ? "" : "no \"" + part + "\" in: " + text;
  }
  TempDir folder_;
};

}  // namespace reynard::test
