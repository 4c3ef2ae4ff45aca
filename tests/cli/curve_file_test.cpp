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
 {"length": 80, "copy_accs": [0.6, 0.575, 0.65, 0.5], "lm_accs": [0.5, 0.45, 0.55, 0.4]}])";

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

TEST_F(EvalCommand, NamesOfCurvesArePrintedWithoutControls) {
  const json named{{"name", "\x1b[31mred"}, {"series", {{"points", json::parse(kCurveFile)}}}};
  test::write_file(folder_ / "red.json", named.dump());
  const ProgramResult result = run({"forgetting-curve", "red.json"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_TRUE(result.output.starts_with("\\x1b[31mred: fine memory")) << result.output;
  EXPECT_EQ(result.output.find('\x1b'), std::string::npos);
}

// Ten sequences of each length. 64 tokens are copied; the gap of 1.2 points at 512 is chance.
TEST_F(EvalCommand, ACoarseLengthWithinNoiseConfirmsNoClaim) {
  json points = json::array();
  for (const int length : {64, 128, 256, 512}) {
    const double gap = length == 64 ? 0.4 : length == 512 ? 0.012 : 0;
    json point{{"length", length}};
    for (int repeat = 0; repeat < 10; ++repeat) {
      point["lm_accs"].push_back(0.3);
      point["copy_accs"].push_back(0.3 + gap + (repeat % 2 ? 0.06 : -0.06));
    }
    points.push_back(point);
  }
  test::write_file(folder_ / "noise.json", points.dump());
  const ProgramResult text = run({"forgetting-curve", "noise.json", "--claimed", "512"});
  ASSERT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_NE(text.output.find("coarse memory 64 tokens; >512 tokens (within noise)"),
            std::string::npos)
      << text.output;
  EXPECT_NE(text.output.find(
                "claimed length 512: not confirmed (2 x the coarse length by test is no more)"),
            std::string::npos)
      << text.output;
  const ProgramResult lines = run({"forgetting-curve", "noise.json", "--claimed", "512", "--json"});
  const json numbers = json::parse(lines.output);
  EXPECT_EQ(numbers.at("confirms_claimed"), false);
  EXPECT_EQ(numbers.at("significant"), 64);
  EXPECT_EQ(numbers.at("coarse"), 512);  // as the paper defines it
}

TEST_F(EvalCommand, AClaimBeyondTheTestedLengthsIsNeitherConfirmedNorDenied) {
  test::write_file(folder_ / "open.json",
                   R"([{"length": 100, "lm_accs": [0.3, 0.4, 0.5], "copy_accs": [1, 1, 0.99]},
                       {"length": 200, "lm_accs": [0.3, 0.3, 0.4], "copy_accs": [1, 1, 1]}])");
  const ProgramResult text = run({"forgetting-curve", "open.json", "--claimed", "600"});
  EXPECT_NE(text.output.find("claimed length 600: not tested far enough (lengths up to 200; needs "
                             "above 300)"),
            std::string::npos)
      << text.output;
  const ProgramResult lines = run({"forgetting-curve", "open.json", "--claimed", "600", "--json"});
  EXPECT_TRUE(json::parse(lines.output).at("confirms_claimed").is_null()) << lines.output;
}

TEST_F(EvalCommand, AClaimBeyondALengthWithinNoiseIsNeitherConfirmedNorDenied) {
  test::write_file(folder_ / "short.json",
                   R"([{"length": 4, "lm_accs": [0.5, 0.5, 0.5], "copy_accs": [1, 1, 1]}])");
  const ProgramResult text = run({"forgetting-curve", "short.json", "--claimed", "100"});
  EXPECT_NE(text.output.find("claimed length 100: not tested far enough (lengths up to 4; needs "
                             "above 50)"),
            std::string::npos)
      << text.output;
  const ProgramResult lines = run({"forgetting-curve", "short.json", "--claimed", "100", "--json"});
  EXPECT_TRUE(json::parse(lines.output).at("confirms_claimed").is_null()) << lines.output;
}

// As in the lists of `reynard eval`.
TEST_F(EvalCommand, EqualLengthsAreComparedOnce) {
  test::write_file(folder_ / "curve.json", kCurveFile);
  const ProgramResult same = run({"forgetting-curve", "curve.json", "--lengths", "8,8"});
  EXPECT_EQ(same.exit_code, 2) << same.output;
  EXPECT_NE(same.errors.find("forgetting-curve: --lengths = one length; expected at least two"),
            std::string::npos)
      << same.errors;
  const auto between = [&](const std::string& lengths) {
    const ProgramResult result =
        run({"forgetting-curve", "curve.json", "--json", "--lengths", lengths});
    return json::parse(result.output).at("between_lengths");
  };
  EXPECT_EQ(between("80,8,40,8"), between("8,40,80"));
}

TEST_F(EvalCommand, OneSequenceOfEachLengthTellsNoCopyingFromChance) {
  test::write_file(folder_ / "once.json",
                   R"([{"length": 64, "lm_accs": [0.3], "copy_accs": [1]},
                       {"length": 128, "lm_accs": [0.3], "copy_accs": [1]}])");
  const ProgramResult text =
      run({"forgetting-curve", "once.json", "--claimed", "200", "--out", "once"});
  ASSERT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_NE(text.output.find("claimed length 200: too few repeats to tell"), std::string::npos)
      << text.output;
  EXPECT_NE(text.output.find("     128   1.00000 0.00000   0.30000 0.00000         -         -\n"),
            std::string::npos)
      << text.output;
  const json summary = json::parse(test::read_file(folder_ / "once/forgetting_curve.json"));
  EXPECT_TRUE(summary.at("metrics").at("copies").is_null());
  use_empty_vega();
  ASSERT_EQ(run({"report", "once", "-o", "once.html"}).exit_code, 0);
  const std::string page = test::read_file(folder_ / "once.html");
  EXPECT_EQ(page.find("has not learned"), std::string::npos);
  EXPECT_NE(page.find("too few repeats to tell"), std::string::npos);
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
  use_empty_vega();
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
      both.output.find(
          "model                      claimed      fine    coarse   by test  RULER effective"),
      std::string::npos)
      << both.output;
  EXPECT_NE(
      both.output.find(
          "curve                          150        40       >80       >80              >64"),
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
