// bench/compare_seeds.py, up to where it would prepare texts and train.

#include "reynard/process/child_process.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace reynard::bench {
namespace {

// What the script ends with where `reynard` does nothing but fail.
std::string errors_of(const std::vector<std::string>& options) {
  std::vector<std::string> arguments = {
      REYNARD_TEST_PYTHON, REYNARD_SOURCE_DIR "/bench/compare_seeds.py", "--reynard", "/bin/false"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  process::ChildProcess script({.arguments = arguments, .read_errors = true});
  std::string errors;
  for (std::string line; !(line = script.read_error_line()).empty();) errors += line + "\n";
  EXPECT_NE(script.wait().exit_code, 0);
  return errors;
}

TEST(CompareSeeds, FewerSeedsThanItDrawsAreAnError) {
  const test::TempDir work;
  for (const char* seeds : {"1", "3"}) {
    EXPECT_SAYS(errors_of({"--text", "a", "--work", work.path().string(), "--seeds", seeds}),
                std::string("--seeds ") + seeds + ": expected at least 4");
  }
}

TEST(CompareSeeds, AFolderOfAnotherExperimentIsNotUsedAgain) {
  const test::TempDir work;
  const std::string folder = work.path().string();
  EXPECT_SAYS(errors_of({"--text", "a", "b", "--work", folder}), "/bin/false prepare");
  EXPECT_SAYS(errors_of({"--text", "a", "b", "--work", folder}), "/bin/false prepare");
  const std::string refusal = "--work " + folder + ": holds models of other --tokens or --text";
  EXPECT_SAYS(errors_of({"--text", "a", "--work", folder}), refusal);
  EXPECT_SAYS(errors_of({"--text", "a", "b", "--tokens", "9", "--work", folder}), refusal);
}

TEST(CompareSeeds, AFolderThatDoesNotSayWhatItHoldsIsNotUsedAgain) {
  const test::TempDir work;
  test::write_file(work / "recipe.toml", "");
  EXPECT_SAYS(errors_of({"--text", "a", "--work", work.path().string()}), "holds models of other");
}

}  // namespace
}  // namespace reynard::bench
