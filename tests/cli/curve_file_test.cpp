// reynard forgetting-curve as a user runs it, on files of accuracies.

#include "tests/cli/eval_command.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <filesystem>

#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using namespace reynard;
using nlohmann::json;
using test::EvalCommand;
using test::ProgramResult;

// Hits out of ceil(length / 2) in the published file, three lengths of it; fine is the middle one.
constexpr const char* kCurveFile = R"([
 {"length": 8, "copy_accs": [1, 0.75, 1, 1], "lm_accs": [0, 0, 0.5, 0.5]},
 {"length": 40, "copy_accs": [1, 1, 1, 0.99], "lm_accs": [0.5, 0.45, 0.55, 0.5]},
 {"length": 80, "copy_accs": [0.6, 0.55, 0.5, 0.525], "lm_accs": [0.5, 0.45, 0.55, 0.4]}])";

TEST_F(EvalCommand, CurvesOfOneRepeatAreNotTested) {
  test::write_file(folder_ / "once.json",
                   R"([{"length": 40, "copy_accs": [0.9], "lm_accs": [0.5]},
                       {"length": 80, "copy_accs": [0.8], "lm_accs": [0.5]}])");
  const ProgramResult result = run({"forgetting-curve", "once.json", "--lengths", "40,80"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.errors,
            "reynard: forgetting-curve: --lengths: once has one accuracy of each length, which "
            "shows no chance; measure it with `reynard eval --forgetting_curve.repeats=2` or more, "
            "or leave --lengths out\n");
  const ProgramResult two = run({"forgetting-curve", "once.json", "once.json"});
  EXPECT_EQ(two.exit_code, 0) << two.errors;
  EXPECT_NE(two.output.find("once: fine memory"), std::string::npos) << two.output;
}

TEST_F(EvalCommand, CurveFilesAreComputedAnew) {
  test::write_file(folder_ / "curve.json", kCurveFile);
  const ProgramResult result = run({"forgetting-curve",
                                    "curve.json",
                                    "--json",
                                    "--lengths",
                                    "40,80",
                                    "--claimed",
                                    "100",
                                    "--out",
                                    "out"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const json numbers = json::parse(result.output);
  EXPECT_EQ(numbers.at("fine"), 40);
  EXPECT_EQ(numbers.at("fine_reached"), true);
  EXPECT_EQ(numbers.at("coarse"), 80);
  EXPECT_EQ(numbers.at("coarse_reached"), false);
  EXPECT_EQ(numbers.at("confirms_claimed"), true);
  EXPECT_GT(numbers.at("between_lengths").at("copy").at("anova").at("statistic").get<double>(),
            100);
  EXPECT_TRUE(fs::exists(folder_ / "out/forgetting_curve.png"));
  EXPECT_TRUE(fs::exists(folder_ / "out/published.json"));
  ASSERT_EQ(run({"report", "out", "-o", "curve.html"}).exit_code, 0);
  // What was written is read again, and several files are compared.
  test::write_file(folder_ / "out/ruler.json",
                   R"({"metrics": {"effective_length": {"text": ">64"}}})");
  const ProgramResult both = run(
      {"forgetting-curve", "out/forgetting_curve.json", "out/published.json", "--claimed", "150"});
  ASSERT_EQ(both.exit_code, 0) << both.errors;
  EXPECT_NE(both.output.find("curve: fine memory 40 tokens, coarse memory >80 tokens"),
            std::string::npos)
      << both.output;
  EXPECT_NE(both.output.find("LM between files, length      40"), std::string::npos) << both.output;
  EXPECT_NE(
      both.output.find("model                      claimed      fine    coarse  RULER effective"),
      std::string::npos)
      << both.output;
  EXPECT_NE(
      both.output.find("curve                          150        40       >80              >64"),
      std::string::npos)
      << both.output;
  fs::create_directories(folder_ / "b");
  test::write_file(folder_ / "b/curve.json", kCurveFile);
  expect_error({"forgetting-curve", "curve.json", "b/curve.json", "--out", "two"},
               "two files have the name \"curve\"");
  expect_error({"forgetting-curve", "curve.json", "--lengths", "40,41"}, "--lengths 41");
  // What `reynard eval` wrote says more than this command can.
  const std::string measured = R"({"task": "forgetting_curve", "identity": {}})";
  test::write_file(folder_ / "b/forgetting_curve.json", measured);
  expect_error({"forgetting-curve", "curve.json", "--out", "b"}, "is a result of `reynard eval`");
  EXPECT_EQ(test::read_file(folder_ / "b/forgetting_curve.json"), measured);
  expect_error({"forgetting-curve", "text.txt"}, "text.txt is not JSON");
}

}  // namespace
