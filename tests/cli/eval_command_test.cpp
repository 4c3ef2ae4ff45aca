// reynard eval as a user runs it, on a small random model.

#include "tests/cli/eval_command.h"
#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace {

namespace fs = std::filesystem;
using namespace reynard;
using nlohmann::json;
using test::EvalCommand;
using test::ProgramResult;

TEST_F(EvalCommand, MeasuresARunAndReportsIt) {
  const ProgramResult eval = run({"eval",
                                  "run",
                                  "--text",
                                  "text.txt",
                                  "--length",
                                  "64",
                                  kFewPoints,
                                  "--text_sample.prompt=20",
                                  "--text_sample.tokens=5",
                                  "--json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.errors;
  // Off a terminal plain lines say how far it is.
  EXPECT_NE(eval.errors.find("forgetting_curve 100% ETA 0:00\n"), std::string::npos) << eval.errors;
  EXPECT_EQ(eval.errors.find('\x1b'), std::string::npos);
  const auto loss = json::parse(test::read_file(folder_ / "run/eval/per_position_loss.json"));
  EXPECT_EQ(loss.at("settings").at("length"), 64);
  EXPECT_EQ(loss.at("train_length"), 64);
  EXPECT_EQ(loss.at("name"), "small");
  // An untrained model knows nothing: about ln 258 per byte.
  EXPECT_NEAR(loss.at("metrics").at("loss").get<double>(), 5.55, 0.3);
  const json first_line = json::parse(eval.output.substr(0, eval.output.find('\n')));
  EXPECT_EQ(first_line.at("metrics"), loss.at("metrics"));
  // A model of ours has the BOS of its token files.
  const auto curve = json::parse(test::read_file(folder_ / "run/eval/forgetting_curve.json"));
  EXPECT_EQ(curve.at("metrics").at("bos"), 256);
  EXPECT_EQ(curve.at("metrics").at("copies"), false);

  use_empty_vega();
  const ProgramResult report = run({"report", "run", "-o", "page/report.html"});
  ASSERT_EQ(report.exit_code, 0) << report.errors;
  const std::string page = test::read_file(folder_ / "page/report.html");
  EXPECT_NE(page.find("What small remembers"), std::string::npos);
  EXPECT_NE(page.find("small has not learned to copy yet"), std::string::npos);
  EXPECT_NE(page.find("reynard eval run --text text.txt --length 64"), std::string::npos);
}

// Six digits, and a line for what is only drawn.
TEST_F(EvalCommand, PrintsResultsForPeople) {
  const ProgramResult eval = run({"eval",
                                  "run",
                                  "--task",
                                  "per_position_loss,text_sample",
                                  "--text",
                                  "text.txt",
                                  "--length",
                                  "64",
                                  "--text_sample.prompt=20",
                                  "--text_sample.tokens=5"});
  ASSERT_EQ(eval.exit_code, 0) << eval.errors;
  const auto loss = json::parse(test::read_file(folder_ / "run/eval/per_position_loss.json"));
  const auto expected =
      fmt::format("\n  {:24} {:.6g}\n", "loss", loss.at("metrics").at("loss").get<double>());
  EXPECT_NE(eval.output.find(expected), std::string::npos) << eval.output;
  EXPECT_NE(eval.output.find("text_sample: measured; the report shows it\n"), std::string::npos)
      << eval.output;
}

// Its maps have whole cells.
TEST_F(EvalCommand, ALookInsideTakesAnyLength) {
  const auto length_of = [&](const char* length) {
    const ProgramResult eval =
        run({"eval", "run", "--task", "inside", "--text", "text.txt", "--length", length});
    EXPECT_EQ(eval.exit_code, 0) << eval.errors;
    return json::parse(test::read_file(folder_ / "run/eval/inside.json"))
        .at("settings")
        .at("length");
  };
  EXPECT_EQ(length_of("100"), 96);
  EXPECT_EQ(length_of("64"), 64);
  EXPECT_EQ(length_of("1"), 32);
}

TEST_F(EvalCommand, ExtrapolatesOverMultiplesOfTheTrainingLength) {
  const ProgramResult eval = run({"eval",
                                  "run",
                                  "--task",
                                  "per_position_loss,forgetting_curve,passkey",
                                  "--text",
                                  "text.txt",
                                  "--extrapolate",
                                  "16",
                                  kFewPoints,
                                  "--forgetting_curve.repeats=2",
                                  "--passkey.lengths=512",
                                  "--passkey.trials=1",
                                  "--passkey.max_tokens=1"});
  ASSERT_EQ(eval.exit_code, 0) << eval.errors;
  const auto settings_of = [&](const char* task) {
    const std::string file = fmt::format("run/eval/{}.json", task);
    return json::parse(test::read_file(folder_ / file)).at("settings");
  };
  EXPECT_EQ(settings_of("per_position_loss").at("length"), 1024);
  // The model reads twice the target.
  EXPECT_EQ(settings_of("forgetting_curve").at("length"), 512);
  EXPECT_EQ(settings_of("passkey").at("lengths"), json({512}));  // its own
  expect_error({"eval", "run/model", "--text", "text.txt", "--extrapolate", "1"}, "--extrapolate");
  expect_error({"eval", "run", "--text", "text.txt", "--extrapolate", "2", "--length", "9"},
               "not together with --length");
  fs::remove(folder_ / "run/run.json");
  expect_error({"eval", "run", "--text", "text.txt", "--extrapolate", "2"}, "give --train-length");
}

TEST_F(EvalCommand, InspectsEveryHeadOnOnePage) {
  use_empty_vega();
  const ProgramResult result = run({"inspect",
                                    "run",
                                    "--text",
                                    "text.txt",
                                    "text.txt",
                                    "--length",
                                    "200",
                                    "--heads",
                                    "1.2",
                                    "--window",
                                    "150:180",
                                    "-o",
                                    "out/inside.html"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("2 heads."), std::string::npos) << result.output;
  const auto numbers = json::parse(test::read_file(folder_ / "out/inside.json"));
  EXPECT_EQ(numbers.at("texts").size(), 2);
  EXPECT_EQ(numbers.at("maps").at(0).at("window").at("end"), 180);
  EXPECT_EQ(numbers.at("sweep").at("points").size(), 20);
  const std::string page = test::read_file(folder_ / "out/inside.html");
  EXPECT_NE(page.find("Inside small"), std::string::npos);
  EXPECT_NE(page.find("layer 1 head 2"), std::string::npos);

  const auto inspect_with = [](const char* option, const char* value) {
    return std::vector<std::string>{"inspect", "run", "--text", "text.txt", option, value};
  };
  expect_error(inspect_with("--heads", "1.3"), "--heads = 1.3; expected 1.1 ... 1.2");
  expect_error(inspect_with("--heads", "x"), "--heads = x");
  expect_error(inspect_with("--heads", "1.1,1.2,1.1"), "expected each head once");
  expect_error(inspect_with("--window", "60:70"), "a piece of the text's 64 tokens");
  expect_error(inspect_with("--length", "1"), "inspect: --length = 1; expected >= 2 tokens");
  expect_error(inspect_with("--log-tolerance", "1"), "below 0");
  expect_error(inspect_with("--threshold", "0"), "--threshold");
  expect_error(inspect_with("--length", "0"), "--length: 0; expected a number above 0");
  test::write_file(folder_ / "mine.json", "{}");
  expect_error(inspect_with("-o", "mine.html"), "mine.json");
  EXPECT_EQ(test::read_file(folder_ / "mine.json"), "{}");
}

TEST_F(EvalCommand, WhatPruningIsForIsNoOptionOfAModelWithoutGates) {
  models::DecoderConfig config = models::load_config(folder_ / "run/model");
  config.attention.forget_gate = models::ForgetGate::kNone;
  models::Decoder decoder(config, 1);
  models::save_model(decoder, folder_ / "plain");
  for (const char* option : {"--log-tolerance=-5", "--sweep-tokens=32"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find('='));
    expect_error({"inspect", "plain", "--text", "text.txt", option},
                 "inspect: " + name + ": the model has no forget gates, so nothing is pruned");
  }
  EXPECT_FALSE(fs::exists(folder_ / "inspect.html"));
}

TEST_F(EvalCommand, FurtherTextsHaveNames) {
  const ProgramResult eval = run({"eval",
                                  "run",
                                  "--task",
                                  "forgetting_curve",
                                  "--text",
                                  "text.txt",
                                  "--text",
                                  "train=text.txt",
                                  "--length",
                                  "16",
                                  kFewPoints,
                                  "--forgetting_curve.targets=text,train"});
  ASSERT_EQ(eval.exit_code, 0) << eval.errors;
  const auto curve = json::parse(test::read_file(folder_ / "run/eval/forgetting_curve.json"));
  EXPECT_EQ(curve.at("series").at("curves").size(), 2);
  const auto eval_with = [](const char* first, const char* second) {
    return std::vector<std::string>{"eval", "run", "--text", first, "--text", second};
  };
  expect_error(eval_with("text.txt", "text.txt"), "two texts without a name");
  expect_error(eval_with("text.txt", "random=text.txt"), "the name 'random' is taken");
  expect_error({"eval", "run", "--text", "a=text.txt"}, "every --text has a name");
}

TEST_F(EvalCommand, CheckpointsAreMeasuredByTokensSeen) {
  const std::vector<std::string> arguments{"eval",
                                           "run",
                                           "--checkpoints",
                                           "all",
                                           "--task",
                                           "per_position_loss",
                                           "--text",
                                           "text.txt",
                                           "--length",
                                           "64"};
  expect_error(arguments, "run has no checkpoints/step-*");
  for (const int step : {1, 2}) {
    const fs::path checkpoint = folder_ / fmt::format("run/checkpoints/step-{:012}", step);
    fs::create_directories(checkpoint.parent_path());
    fs::copy(folder_ / "run/model", checkpoint, fs::copy_options::recursive);
    test::write_file(checkpoint / "trainer.json", json{{"tokens", 1000 * step}}.dump());
  }
  fs::create_directories(folder_ / "run/eval");
  test::write_file(folder_ / "run/eval/checkpoints.json", "my notes");
  expect_error(arguments, "run/eval/checkpoints.json exists and is not a summary of eval");
  fs::remove(folder_ / "run/eval/checkpoints.json");
  const ProgramResult eval = run(arguments);
  ASSERT_EQ(eval.exit_code, 0) << eval.errors;
  const auto all = json::parse(test::read_file(folder_ / "run/eval/checkpoints.json"));
  const json& points = all.at("series").at("points");
  ASSERT_EQ(points.size(), 2);
  EXPECT_EQ(points[1].at("tokens"), 2000);
  EXPECT_EQ(points[0].at("metrics").at("loss"), points[1].at("metrics").at("loss"));
  EXPECT_EQ(all.at("name"), "small");
  EXPECT_TRUE(
      fs::exists(folder_ / "run/eval/checkpoints/step-000000000001/per_position_loss.json"));
  const std::string counters = "run/checkpoints/step-000000000002/trainer.json";
  test::write_file(folder_ / counters, R"({"tokens": "x"})");
  expect_error(arguments, counters + ": tokens = \"x\"; expected an integer; copy the checkpoint");
  expect_error({"eval", "run", "--checkpoints", "3", "--text", "text.txt"}, "--checkpoints = 3");
}

TEST_F(EvalCommand, DictionariesAreWrittenAndPrepared) {
  test::write_file(folder_ / ".tmp-d.jsonl-7.0", "of a process that was killed");
  ASSERT_EQ(run({"dictionary", "-o", "d.jsonl", "--documents", "3"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder_ / ".tmp-d.jsonl-7.0"));
  fs::create_symlink("elsewhere/e.jsonl", folder_ / "e.jsonl");
  ASSERT_EQ(run({"dictionary", "-o", "e.jsonl", "--documents", "3"}).exit_code, 0);
  EXPECT_TRUE(fs::is_symlink(folder_ / "e.jsonl"));
  EXPECT_EQ(test::read_file(folder_ / "elsewhere/e.jsonl"), test::read_file(folder_ / "d.jsonl"));
  const ProgramResult prepared = run({"prepare", "d.jsonl", "-o", "data"});
  ASSERT_EQ(prepared.exit_code, 0) << prepared.errors;
  const std::string lines = test::read_file(folder_ / "d.jsonl");
  // Two blocks of 256 tokens: 25 definitions, and 25 queries, of 10 tokens, filled up.
  EXPECT_EQ(json::parse(lines.substr(0, lines.find('\n'))).at("text").get<std::string>().size(),
            512);
  expect_error({"dictionary", "-o", "d.jsonl", "--tokens", "10"}, "--tokens = 10");
  // Nor do samples of a task take their place.
  const std::string task = "dictionary";
  ASSERT_EQ(run({"dictionary", "-o", "d/dictionary.jsonl", "--documents", "3"}).exit_code, 0);
  expect_error({"eval", "run", "--task", task, "--text", "text.txt", "-o", "d"},
               "eval: d/dictionary.jsonl exists and is not a sample log");
  EXPECT_EQ(test::read_file(folder_ / "d/dictionary.jsonl"), lines);
}

TEST_F(EvalCommand, SecondRunAsksForNothingNew) {
  ASSERT_EQ(measure_loss().exit_code, 0);
  const std::string lines = test::read_file(folder_ / "run/eval/per_position_loss.jsonl");
  const auto read_summary = [&] {
    return json::parse(test::read_file(folder_ / "run/eval/per_position_loss.json"));
  };
  const json first = read_summary();
  ASSERT_EQ(measure_loss().exit_code, 0);
  EXPECT_EQ(test::read_file(folder_ / "run/eval/per_position_loss.jsonl"), lines);
  const json summary = read_summary();
  EXPECT_GT(first.at("effort").at("tokens"), 0);
  EXPECT_EQ(summary.at("effort").at("tokens"), first.at("effort").at("tokens"));
  EXPECT_EQ(summary.at("effort").at("reused_samples"), summary.at("metrics").at("rows"));
}

TEST_F(EvalCommand, LengthIsThatOfPerplexityToo) {
  const std::vector<std::string> arguments{"eval",
                                           "run",
                                           "--task",
                                           "perplexity",
                                           "--text",
                                           "text.txt",
                                           "--perplexity.tokens=200",
                                           "--length",
                                           "32"};
  const ProgramResult eval = run(arguments);
  ASSERT_EQ(eval.exit_code, 0) << eval.errors;
  const fs::path samples = folder_ / "run/eval/perplexity.jsonl";
  const auto settings = json::parse(test::read_file(folder_ / "run/eval/perplexity.json"));
  EXPECT_EQ(settings.at("/settings/window"_json_pointer), 32);
  EXPECT_EQ(settings.at("/settings/length"_json_pointer), 32);
  // The text is one document.
  EXPECT_NE(eval.output.find("2, 4, 8: of documents with 32 tokens or more"), std::string::npos)
      << eval.output;

  // A line that another program changed.
  std::string lines = test::read_file(samples);
  lines.replace(lines.find("\"scored\""), 8, "\"counted\"");
  test::write_file(samples, lines);
  expect_error(arguments, "run/eval/perplexity.jsonl:2: key 'scored' not found");
}

TEST_F(EvalCommand, PublishedModelWithoutBosIsMeasuredWithoutIt) {
  fs::rename(folder_ / "run/model", folder_ / "published");
  const ProgramResult eval = run({"eval",
                                  "published",
                                  "--task",
                                  "forgetting_curve",
                                  "--text",
                                  "text.txt",
                                  "--length",
                                  "32",
                                  kFewPoints,
                                  "-o",
                                  "results"});
  ASSERT_EQ(eval.exit_code, 0) << eval.errors;
  const auto curve = json::parse(test::read_file(folder_ / "results/forgetting_curve.json"));
  EXPECT_TRUE(curve.at("metrics").at("bos").is_null());
}

// JSON is UTF-8; names of files need not be.
TEST_F(EvalCommand, NamesThatAreNotUTF8AreReplacedInJson) {
  std::filesystem::rename(folder_ / "text.txt", folder_ / "caf\xe9.txt");
  const ProgramResult eval = run({"eval",
                                  "run",
                                  "--task",
                                  "per_position_loss",
                                  "--length",
                                  "64",
                                  "--text",
                                  "caf\xe9.txt",
                                  "--json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.errors;
  EXPECT_EQ(json::parse(eval.output).at("text"), "caf\uFFFD.txt");
  std::filesystem::rename(folder_ / "run", folder_ / "caf\xe9");
  const ProgramResult info = run({"info", "caf\xe9", "--json"});
  ASSERT_EQ(info.exit_code, 0) << info.errors;
  EXPECT_EQ(json::parse(info.output).at("model"), "caf\uFFFD");
}

}  // namespace
