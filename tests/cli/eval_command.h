#pragma once
// A folder with a short text and a small random model in `run`: what `reynard eval` and `report` do
// there as a user runs them.

#include "tests/support/files.h"
#include "tests/support/program.h"
#include "tests/support/small_run.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

namespace reynard::test {

class EvalCommand : public testing::Test {
 protected:
  EvalCommand() { write_small_run(folder_.path()); }
  ~EvalCommand() override {
    ::unsetenv("REYNARD_VEGA");
    ::unsetenv("REYNARD_PYTHON");
  }
  ProgramResult run(std::vector<std::string> arguments) {
    return run_program({.arguments = std::move(arguments), .folder = folder_.path()});
  }
  // The loss by position over rows of 64 tokens.
  ProgramResult measure_loss(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{
        "eval", "run", "--task", "per_position_loss", "--text", "text.txt", "--length", "64"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(std::move(arguments));
  }
  // Pages get a script that draws nothing.
  void use_empty_vega() {
    write_file(folder_ / "vega.js", "window.vegaEmbed = 1");
    ::setenv("REYNARD_VEGA", (folder_ / "vega.js").c_str(), 1);
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
