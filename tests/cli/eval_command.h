#pragma once
// A folder with a short text and a small random model in `run`: what `reynard eval` and `report` do
// there as a user runs them.

#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/small_run.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace reynard::test {

class EvalCommand : public testing::Test {
 protected:
  EvalCommand() { write_small_run(folder_.path()); }
  ProgramResult run(std::vector<std::string> arguments) {
    return run_program({.arguments = std::move(arguments), .folder = folder_.path()});
  }
  void expect_error(std::vector<std::string> arguments, const std::string& message) {
    const ProgramResult result = run(std::move(arguments));
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_NE(result.errors.find(message), std::string::npos) << result.errors;
  }
  static constexpr const char* kFewPoints = "--forgetting_curve.points=3";
  TempDir folder_;
};

}  // namespace reynard::test
