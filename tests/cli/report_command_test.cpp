// reynard report and reynard compare as a user runs them, on what a small random model gives.

#include "tests/cli/eval_command.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using namespace reynard;
using nlohmann::json;
using test::EvalCommand;
using test::ProgramResult;

// What a reader sees: all figures drawn, explained, and no wider than a phone.
TEST_F(EvalCommand, PagesFitADesktopAndAPhone) {
  test::write_small_run(folder_.path(), /*num_layers=*/2);  // four heads: three maps and one
  // As a sweep names them.
  const std::string first = "optimizer.learning_rate=6e-3,seed=0";
  const std::string second = "model.attention.forget_gate=full,optimizer.learning_rate=6e-3,seed=1";
  for (const std::string& name : {first, second}) {
    fs::copy(folder_ / "run", folder_ / name, fs::copy_options::recursive);
    json about = json::parse(test::read_file(folder_ / name / "run.json"));
    about["name"] = name;
    test::write_file(folder_ / name / "run.json", about.dump());
  }
  for (const std::string& name : {first, second}) {
    const ProgramResult eval =
        run({"eval",
             name,
             "--text",
             "text.txt",
             "--task",
             "per_position_loss,forgetting_curve,inside,pruning,needle,passkey,text_sample",
             "--length=512",
             kFewPoints,
             "--forgetting_curve.length=64",
             "--needle.lengths=2",
             "--needle.depths=2",
             "--needle.max_tokens=2",
             "--passkey.max_tokens=2",
             "--passkey.trials=2"});
    ASSERT_EQ(eval.exit_code, 0) << eval.errors;
  }
  const ProgramResult report = run({"report", first, second, "-o", "report.html"});
  if (report.errors.find("could not be made") != std::string::npos) GTEST_SKIP() << report.errors;
  ASSERT_EQ(report.exit_code, 0) << report.errors;
  ASSERT_EQ(run({"compare", first, second, "-o", "compare.html"}).exit_code, 0);
  ASSERT_EQ(run({"inspect", first, "--text", "text.txt", "--heads", "all", "-o", "inspect.html"})
                .exit_code,
            0);
  const std::string command =
      fmt::format("cd {} && timeout 100 {} {} report.html compare.html inspect.html",
                  folder_.path().string(),
                  REYNARD_TEST_PYTHON,
                  REYNARD_SOURCE_DIR "/tests/cli/report_in_browser.py");
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "there is no chromium; apt-get install chromium";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(EvalCommand, FiguresShowRunsOfAnyName) {
  for (const char* name : {"one", "caf\xe9"}) {
    fs::create_directories(folder_ / name);
    test::write_file(folder_ / name / "run.json", "{}");
    test::write_file(folder_ / name / "metrics.jsonl",
                     R"({"step": 1, "tokens": 64, "loss": 2, "seconds": 1})"
                     "\n");
  }
  const ProgramResult report = run({"report", "one", "caf\xe9", "--png", "figures"});
  EXPECT_EQ(report.exit_code, 0) << report.errors;
}

// A name is printed, and may hold what a terminal obeys.
TEST_F(EvalCommand, ReportPrintsNamesWithoutControls) {
  fs::create_directories(folder_ / "red");
  const json named{{"name", "\x1b[31mred\x1b]0;title\x07\n\u202E"}};
  test::write_file(folder_ / "red/run.json", named.dump());
  test::write_file(folder_ / "red/metrics.jsonl", "{\"tokens\": 64, \"loss\": 2}\n");
  const json curve{{"task", "forgetting_curve"},
                   {"metrics", {{"fine_length", {{"length", 1}, {"text", "\x1b[2J1"}}}}}};
  fs::create_directories(folder_ / "red/eval");
  test::write_file(folder_ / "red/eval/forgetting_curve.json", curve.dump());
  use_empty_vega();
  const ProgramResult report =
      run({"report", "red", "-o", "report.html", "--csv", "tables/report.csv"});
  ASSERT_EQ(report.exit_code, 0) << report.errors;
  EXPECT_NE(report.output.find("\\x1b[31mred\\x1b]0;title\\x07\\x0a\\u202e\n"), std::string::npos)
      << report.output;
  EXPECT_NE(report.output.find("\\x1b[2J1 tokens"), std::string::npos) << report.output;
  EXPECT_EQ(report.output.find_first_of("\x1b\x07"), std::string::npos);
  EXPECT_EQ(test::read_file(folder_ / "tables/report.csv"),
            "run,task,metric,value,standard_error,unit\r\n"
            "\\x1b[31mred\\x1b]0;title\\x07\\x0a\\u202e,forgetting_curve,fine_length/"
            "length,1,,tokens\r\n");
  expect_error({"report", "red", "-o", "report.html", "--csv", "red/run.json"},
               "report: --csv red/run.json: the file exists and is not such a table");
}

TEST_F(EvalCommand, ReportsOfManyRunsFitTheTerminal) {
  std::vector<std::string> command = {"report"};
  for (const char* name : {"four layers, English novels, seed 1",
                           "four layers, English novels, seed 2",
                           "four layers, Python sources, seed 1"}) {
    fs::create_directories(folder_ / name);
    test::write_file(folder_ / name / "run.json", json{{"name", name}}.dump());
    test::write_file(folder_ / name / "metrics.jsonl", "{\"tokens\": 64, \"loss\": 2}\n");
    command.emplace_back(name);
  }
  use_empty_vega();
  const ProgramResult report = run(command);
  ASSERT_EQ(report.exit_code, 0) << report.errors;
  EXPECT_SAYS(report.output, "\nfour layers, English novels, seed 2\n  ");
  std::istringstream lines(report.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100) << line;
}

// Of one row there are no errors: "-", not "nan".
TEST_F(EvalCommand, WhatOneRowDoesNotTellIsNoNumber) {
  const ProgramResult eval = measure_loss({"--per_position_loss.rows=1"});
  ASSERT_EQ(eval.exit_code, 0) << eval.errors;
  EXPECT_NE(eval.output.find(fmt::format("\n  {:24} -\n", "standard_error")), std::string::npos)
      << eval.output;
  use_empty_vega();
  const ProgramResult report = run({"report", "run", "-o", "report.html"});
  ASSERT_EQ(report.exit_code, 0) << report.errors;
  for (const std::string& text : {eval.output, report.output}) {
    EXPECT_EQ(text.find("nan"), std::string::npos) << text;
  }
  EXPECT_EQ(test::read_file(folder_ / "report.html").find(" nan"), std::string::npos);
}

TEST_F(EvalCommand, ComparesRunsThatWereMeasuredAlike) {
  const auto eval = [&](const char* output, const char* rows) {
    return measure_loss({std::string("--per_position_loss.rows=") + rows, "-o", output});
  };
  ASSERT_EQ(eval("a", "8").exit_code, 0);
  ASSERT_EQ(eval("b", "8").exit_code, 0);
  use_empty_vega();
  const ProgramResult alike = run({"compare", "a", "b", "-o", "compare.html"});
  EXPECT_NE(alike.output.find("per_position_loss: no difference between a and b ("),
            std::string::npos)
      << alike.output << alike.errors;
  const ProgramResult same = run({"compare", "a", "b", "--json"});
  ASSERT_EQ(same.exit_code, 0) << same.errors;
  const json difference = json::parse(same.output);
  EXPECT_EQ(difference.at("differs"), false);
  EXPECT_EQ(difference.at("difference"), 0);
  EXPECT_TRUE(difference.at("low").is_null()) << "differences of 0 have no spread";
  EXPECT_EQ(difference.at("samples"), 8);
  EXPECT_EQ(difference.at("first_folder"), "a");
  EXPECT_EQ(difference.at("second_folder"), "b");

  ASSERT_EQ(eval("c", "9").exit_code, 0);
  const ProgramResult page = run({"compare", "a", "c", "-o", "compare.html"});
  ASSERT_EQ(page.exit_code, 0) << page.errors;
  EXPECT_NE(page.output.find("not compared: per_position_loss"), std::string::npos) << page.output;
  EXPECT_TRUE(fs::exists(folder_ / "compare.html"));
  const ProgramResult other = run({"compare", "a", "c", "--json"});
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_EQ(other.output, "");
  EXPECT_NE(other.errors.find("not compared: per_position_loss: a and c were measured"),
            std::string::npos)
      << other.errors;
  fs::create_directory(folder_ / "d");
  fs::copy(folder_ / "a/per_position_loss.json", folder_ / "d/passkey.json");
  expect_error({"compare", "a", "d", "-o", "compare.html"},
               "no task was measured for two of the runs; run `reynard eval` on each with the same "
               "tasks and text\nnot compared: per_position_loss: measured for a only.\nnot "
               "compared: passkey: measured for d only.\n");
  expect_error({"compare", "a"}, "RUN = one run; expected at least two");
  expect_error({"compare", "a", "b", "./a"}, "a and ./a are one folder");
  expect_error({"compare", "a", "b", "--resamples", "3"}, "--resamples = 3");
}

TEST_F(EvalCommand, ReportNamesWhatIsMissing) {
  expect_error({"report", "nowhere"}, "nowhere: is not a folder");
  fs::create_directory(folder_ / "empty");
  expect_error({"report", "empty"}, "no run.json");
  for (const char* run : {"b", "a", "c", "d", "e", "f"}) {
    fs::create_directories(folder_ / "sweep" / run);
    test::write_file(folder_ / "sweep" / run / "run.json", "{}");
  }
  expect_error({"report", "sweep"},
               "no results of `reynard eval`; it holds the runs a, b, c, d, e and 1 more: name "
               "those, as sweep/*/");
  ::setenv("REYNARD_VEGA", (folder_ / "nowhere/vega.js").c_str(), 1);
  ::setenv("REYNARD_PYTHON", "/nowhere/python", 1);
  expect_error({"report", "run"}, "/nowhere/vega.js is missing");
  expect_error({"report", "run"}, "$REYNARD_VEGA names another file");
  expect_error({"report", "run"}, "run `/nowhere/python ");
  expect_error({"report", "run"}, "$REYNARD_PYTHON names another Python");
  for (const char* window : {"0", "2"}) {
    expect_error({"report", "run", "--smoothing", window},
                 fmt::format("report: --smoothing = {}; expected an odd number", window));
  }
  expect_error({"inspect", "run", "--text", "text.txt", "-o", "inside.html"},
               "/nowhere/vega.js is missing");
  EXPECT_FALSE(fs::exists(folder_ / "inside.json"));
}

}  // namespace
