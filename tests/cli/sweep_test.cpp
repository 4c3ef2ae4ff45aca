// reynard sweep as a user runs it.

#include "tests/cli/train_command.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace reynard;
namespace fs = std::filesystem;
using test::ProgramResult;
using test::TrainCommand;

TEST_F(TrainCommand, SweepTabulatesAndGoesOn) {
  const std::vector<std::string> sweep = {"sweep",
                                          "tiny.toml",
                                          "--quiet",
                                          "--grid",
                                          "optimizer.learning_rate=1e-2,1e-5",
                                          "--seeds",
                                          "2",
                                          "--run.folder=sweep",
                                          "--training.tokens=1280",
                                          "--training.checkpoint_every=0",
                                          "--validation.path=text/held_out.tokens",
                                          "--validation.tokens=256"};
  const ProgramResult first = run(sweep);
  ASSERT_EQ(first.exit_code, 0) << first.errors;
  const auto table = json("sweep/sweep.json");
  EXPECT_EQ(table.at("loss"), "held_out");
  ASSERT_EQ(table.at("rows").size(), 2U);
  EXPECT_EQ(table["rows"][0]["settings"][0], "optimizer.learning_rate=1e-2");  // learns
  for (const auto& row : table["rows"]) {
    EXPECT_EQ(row.at("losses").size(), 2U);
    EXPECT_LE(row.at("min"), row.at("mean"));
    EXPECT_LE(row.at("mean"), row.at("max"));
    EXPECT_LT(row.at("min"), row.at("max"));  // seeds differ
  }
  const auto result = folder_ / "sweep/optimizer.learning_rate=1e-2,seed=1/result.json";
  const auto written = fs::last_write_time(result);
  const ProgramResult second = run(sweep);
  EXPECT_EQ(second.output, first.output);
  EXPECT_EQ(fs::last_write_time(result), written);  // reused
}

// The command of each run gives a key once, as train takes it.
TEST_F(TrainCommand, SweepRecordsCommandsThatTrainTakes) {
  const ProgramResult result = run({"sweep",
                                    "tiny.toml",
                                    "--quiet",
                                    "--run.folder=sweep",
                                    "--run.seed=5",
                                    "--data.seed=6",
                                    "--training.tokens=128"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const std::string command = json("sweep/seed=0/run.json").at("command").dump();
  for (const std::string key : {"--run.folder=", "--run.seed=", "--data.seed="}) {
    EXPECT_EQ(command.find(key), command.rfind(key)) << command;
  }
}

// What some points read may stand in the file for all; what none reads is refused, as by train.
TEST_F(TrainCommand, SweepTakesKeysThatSomePointsRead) {
  const auto sweep = [&](const std::string& grid) {
    return run({"sweep",
                "tiny.toml",
                "--quiet",
                "--grid",
                grid,
                "--run.folder=sweep",
                "--training.tokens=128",
                "--schedule.decay_fraction=0.25"});
  };
  const ProgramResult result = sweep("schedule.shape=wsd,cosine");
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const auto settings = [&](const std::string& shape) {
    return test::read_file(folder_ / "sweep" / ("schedule.shape=" + shape + ",seed=0") /
                           "experiment.toml");
  };
  EXPECT_NE(settings("wsd").find("decay_fraction = 0.25\n"), std::string::npos);
  EXPECT_EQ(settings("cosine").find("decay_fraction = 0.25\n"), std::string::npos);
  // The recorded command trains the same run.
  auto command = json("sweep/schedule.shape=cosine,seed=0/run.json").at("command");
  std::vector<std::string> words(command.begin() + 1, command.end());
  words.emplace_back("--resume");
  const ProgramResult again = run(words);
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_SAYS(sweep("schedule.shape=linear,cosine").errors,
              "tiny.toml: schedule.decay_fraction: needs schedule.shape = \"wsd\"");
}

// Their defaults are recorded as the command line spells them.
TEST_F(TrainCommand, SweepTakesNamesThatSomePointsRead) {
  const ProgramResult result = run({"sweep",
                                    "tiny.toml",
                                    "--quiet",
                                    "--grid",
                                    "model.mixer=attention,memory_attention",
                                    "--run.folder=sweep",
                                    "--training.tokens=128",
                                    "--model.memory.merge=gated"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  for (const auto& [mixer, merge] :
       {std::pair{"attention", "joint"}, std::pair{"memory_attention", "gated"}}) {
    const std::string name = fmt::format("sweep/model.mixer={},seed=0", mixer);
    EXPECT_SAYS(test::read_file(folder_ / name / "experiment.toml"),
                fmt::format("merge = \"{}\"\n", merge));
    const auto command = json(name + "/run.json").at("command");
    std::vector<std::string> words(command.begin() + 1, command.end());
    words.emplace_back("--resume");
    const ProgramResult again = run(words);
    EXPECT_EQ(again.exit_code, 0) << again.errors;
  }
}

TEST_F(TrainCommand, SweepTakesTextsThatAreEmpty) {
  const std::string tokens = "--training.tokens=64";
  ASSERT_EQ(train("first", {tokens}).exit_code, 0);
  const ProgramResult result = run({"sweep",
                                    "tiny.toml",
                                    "--quiet",
                                    "--grid",
                                    "run.start_from=,first",
                                    "--run.folder=sweep",
                                    tokens});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(json("sweep/sweep.json").at("rows").size(), 2U);
}

TEST_F(TrainCommand, SweepTakesLists) {
  const ProgramResult result = run({"sweep",
                                    "tiny.toml",
                                    "--quiet",
                                    "--grid",
                                    "model.memory.layers=[0,1],[1],[]",
                                    "--run.folder=sweep",
                                    "--training.tokens=64",
                                    "--model.num_layers=2",
                                    "--model.mixer=memory_attention"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  for (const auto& [value, recorded] :
       {std::pair{"[0,1]", "[0, 1]"}, std::pair{"[1]", "[1]"}, std::pair{"[]", "[]"}}) {
    EXPECT_SAYS(
        test::read_file(folder_ / fmt::format("sweep/model.memory.layers={},seed=0", value) /
                        "experiment.toml"),
        fmt::format("layers = {}\n", recorded));
  }
  EXPECT_EQ(json("sweep/sweep.json").at("rows").size(), 3U);
}

// Programs of before recorded keys that they did not read.
TEST_F(TrainCommand, SweepReusesRunsThatRecordUnreadKeys) {
  const std::vector<std::string> sweep = {
      "sweep", "tiny.toml", "--quiet", "--run.folder=sweep", "--training.tokens=128"};
  ASSERT_EQ(run(sweep).exit_code, 0);
  set_in_experiment("sweep/seed=0", "decay_fraction", "0.25");
  const ProgramResult again = run(sweep);
  EXPECT_EQ(again.exit_code, 0) << again.errors;
}

// Its last settings are those of the point; the first half was trained with others.
TEST_F(TrainCommand, SweepReusesNoRunWhoseSettingsChangedOnTheWay) {
  const std::vector<std::string> sweep = {
      "sweep", "tiny.toml", "--quiet", "--run.folder=sweep", "--training.tokens=128"};
  ASSERT_EQ(
      train("sweep/seed=0", {"--training.tokens=64", "--optimizer.learning_rate=0.5"}).exit_code,
      0);
  ASSERT_EQ(train("sweep/seed=0", {"--resume", "--training.tokens=128"}).exit_code, 0);
  const ProgramResult result = run(sweep);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.errors,
            "reynard: sweep/seed=0: is a run whose settings were changed on the way "
            "(optimizer.learning_rate: 0.5 -> 0.01, training.tokens: 64 -> 128), not one of this "
            "point; remove it or choose another run.folder\n");
  fs::remove_all(folder_ / "sweep/seed=0");
  EXPECT_EQ(run(sweep).exit_code, 0);
}

// Where it was finished, another rate could not become its own.
TEST_F(TrainCommand, SweepTakesNoRunOfAnotherRate) {
  ASSERT_EQ(train("sweep/seed=0", {"--training.tokens=64"}).exit_code, 0);
  const std::string rate = "--optimizer.learning_rate=1e-4", tokens = "--training.tokens=64";
  train("sweep/seed=0", {"--resume", tokens, rate});
  const ProgramResult result =
      run({"sweep", "tiny.toml", "--quiet", "--run.folder=sweep", tokens, rate});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_SAYS(result.errors, "sweep/seed=0: is a run of other settings");
}

TEST_F(TrainCommand, SweepSpeaksOfCheckpointsOfRunsThatWereBegun) {
  const std::vector<std::string> sweep = {
      "sweep", "tiny.toml", "--run.folder=sweep", "--training.tokens=640"};
  const auto says = [&](const std::string& part) {
    const ProgramResult result = run(sweep);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return result.errors.find(part) != std::string::npos;
  };
  EXPECT_FALSE(says("checkpoint"));
  fs::remove(folder_ / "sweep/seed=0/result.json");
  EXPECT_TRUE(says("resumed after step 10"));
}

// The settings name files, whose text may be another one by now.
TEST_F(TrainCommand, SweepReusesNoRunOfAnotherText) {
  const auto sweep = [&] {
    return run({"sweep",
                "tiny.toml",
                "--quiet",
                "--run.folder=sweep",
                "--training.tokens=640",
                "--training.checkpoint_every=0",
                "--validation.path=text/held_out.tokens",
                "--validation.tokens=256"});
  };
  ASSERT_EQ(sweep().exit_code, 0);
  for (const std::string text :
       {"data.path = text/train.tokens", "validation.path = text/held_out.tokens"}) {
    const fs::path file = folder_ / text.substr(text.find("text/"));
    const std::string before = test::read_file(file);
    test::write_file(file, test::with_another_letter(before));
    const ProgramResult result = sweep();
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.errors,
              "reynard: sweep/seed=0: is a run of another text: " + text +
                  " was changed since; remove it or choose another run.folder\n");
    test::write_file(file, before);
  }
  EXPECT_EQ(sweep().exit_code, 0);
}

TEST_F(TrainCommand, SweepGoesOnBehindARunThatDiverges) {
  const ProgramResult result = run({"sweep",
                                    "tiny.toml",
                                    "--quiet",
                                    "--grid",
                                    "optimizer.learning_rate=1e30,1e-2",
                                    "--run.folder=sweep",
                                    "--training.tokens=1280",
                                    "--training.checkpoint_every=0"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.errors.find("sweep: 1 of the runs diverged and is not in the table: "
                               "sweep/optimizer.learning_rate=1e30,seed=0"),
            std::string::npos)
      << result.errors;
  EXPECT_NE(result.output.find("| optimizer.learning_rate=1e-2 |"), std::string::npos)
      << result.output;
  const auto table = json("sweep/sweep.json");
  ASSERT_EQ(table.at("rows").size(), 1U);
  ASSERT_EQ(table.at("diverged").size(), 1U);
  EXPECT_EQ(table["diverged"][0]["settings"][0], "optimizer.learning_rate=1e30");
}

// A budget that ends before max_skipped_steps, and a result that an earlier version left.
TEST_F(TrainCommand, SweepTabulatesFiniteLossesAlone) {
  const std::vector<std::string> sweep = {"sweep",
                                          "tiny.toml",
                                          "--quiet",
                                          "--grid",
                                          "optimizer.learning_rate=1e15,1e-3,1e-2",
                                          "--run.folder=sweep",
                                          "--training.tokens=320",
                                          "--training.checkpoint_every=0",
                                          "--validation.path=text/held_out.tokens"};
  const auto expect_table = [&](const std::vector<std::string>& rows,
                                const std::vector<std::string>& diverged) {
    const ProgramResult result = run(sweep);
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_EQ(result.output.find("nan"), std::string::npos) << result.output;
    const auto table = json("sweep/sweep.json");
    const auto rates = [&](const char* list) {
      std::vector<std::string> rates;
      for (const auto& item : table.at(list)) rates.push_back(item.at("settings").at(0));
      return rates;
    };
    EXPECT_EQ(rates("rows"), rows);
    EXPECT_EQ(rates("diverged"), diverged);
  };
  const std::string large = "optimizer.learning_rate=1e15", small = "optimizer.learning_rate=1e-3",
                    good = "optimizer.learning_rate=1e-2";
  expect_table({good, small}, {large});
  const std::string file = "sweep/" + small + ",seed=0/result.json";
  auto result = json(file);
  result["validation_loss"] = nullptr;
  test::write_file(folder_ / file, result.dump());
  expect_table({good}, {large, small});
}

TEST_F(TrainCommand, SweepRejectsAPointBeforeTheFirstRuns) {
  const ProgramResult result = run({"sweep",
                                    "tiny.toml",
                                    "--grid",
                                    "optimizer.learning_rate=1e-2,fast",
                                    "--run.folder=sweep",
                                    "--training.tokens=1280"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.errors, "reynard: --optimizer.learning_rate = fast; must be a number\n");
  EXPECT_FALSE(fs::exists(folder_ / "sweep"));
}

// The folder of a run is named after its values.
TEST_F(TrainCommand, SweepRejectsLongValuesBeforeTheFirstRuns) {
  std::string long_path = "text/";
  while (long_path.size() < 240) long_path += "../text/";
  long_path += "train.tokens";
  const ProgramResult result = run({"sweep",
                                    "tiny.toml",
                                    "--quiet",
                                    "--grid",
                                    "data.path=text/train.tokens," + long_path,
                                    "--run.folder=sweep",
                                    "--training.tokens=128"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.errors,
            fmt::format("reynard: --grid data.path={}: names a folder of 274 bytes; expected at "
                        "most 255; give a shorter value, such as a link to the file\n",
                        long_path));
  EXPECT_FALSE(fs::exists(folder_ / "sweep"));
}

TEST_F(TrainCommand, SweepRejectsSeedsBeyondIntegers) {
  for (const std::string key : {"run.seed", "data.seed"}) {
    const ProgramResult result = run({"sweep",
                                      "tiny.toml",
                                      "--run.folder=sweep",
                                      "--" + key + "=9223372036854775807",
                                      "--seeds",
                                      "2"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.errors,
              fmt::format("reynard: {} = 9223372036854775807; must be at most "
                          "9223372036854775806 with --seeds 2\n",
                          key));
    EXPECT_FALSE(fs::exists(folder_ / "sweep"));
  }
}

TEST_F(TrainCommand, SweepLeavesFilesThatAreNotItsOwn) {
  const fs::path file = folder_ / "sweep/sweep.json";
  fs::create_directory(folder_ / "sweep");
  const std::vector<std::string> sweep{"sweep",
                                       "tiny.toml",
                                       "--quiet",
                                       "--grid",
                                       "optimizer.learning_rate=1e-2,1e-3",
                                       "--run.folder=sweep",
                                       "--training.tokens=64"};
  for (const char* other : {"{\"rows\": []}\n", "my notes"}) {
    test::write_file(file, other);
    const ProgramResult result = run(sweep);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.errors,
              "reynard: sweep: sweep/sweep.json exists and is not a table of sweep; remove it or "
              "give another run.folder\n");
    EXPECT_EQ(test::read_file(file), other);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "sweep"), {}), 1);  // nothing was run
  }
  test::write_file(file, "");
  for (const char* time : {"first", "second"}) {
    ASSERT_EQ(run(sweep).exit_code, 0) << time;
    EXPECT_EQ(nlohmann::json::parse(test::read_file(file)).at("rows").size(), 2) << time;
  }
}

TEST_F(TrainCommand, SweepRejects) {
  const auto expect_error = [&](const std::vector<std::string>& axes, const std::string& part) {
    std::vector<std::string> arguments = {"sweep", "tiny.toml", "--run.folder=sweep"};
    for (const std::string& axis : axes) arguments.insert(arguments.end(), {"--grid", axis});
    const ProgramResult result = run(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
    EXPECT_FALSE(fs::exists(folder_ / "sweep/sweep.json"));
  };
  expect_error({"optimizer.learning_rate"}, "expected section.key=value");
  expect_error({"optimizer.learning_rate=1e-3,1e-3"}, "names a value twice");
  for (const std::string values : {"0.1,", ",0.1", "0.1,,0.2"}) {
    expect_error({"optimizer.weight_decay=" + values}, "--optimizer.weight_decay = ;");
  }
  expect_error({"optimizer.learning_rate=1e-3,0.001"}, "would be the same run");
  expect_error({"data.path=text/train.tokens,text_train.tokens"},
               "two runs would share the folder sweep/data.path=text_train.tokens,seed=0");
  expect_error({"model.num_layers=1,2", "model.num_layers=1"},
               "--grid model.num_layers=1: model.num_layers has a --grid already");
  expect_error({"run.folder=a,b"}, "each run has a folder of its own");
  for (const std::string axis : {"run.seed=1,2", "data.seed=1,2"}) {
    const ProgramResult result = run({"sweep", "tiny.toml", "--seeds", "2", "--grid", axis});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.errors.find("--grid " + axis + ": --seeds 2 adds to"), std::string::npos)
        << result.errors;
  }
  // Planning them would take all memory.
  for (const auto& [seeds, axis] : {std::pair{"5001", "model.num_layers=1,2"},
                                    std::pair{"99999999999", "model.num_layers=1"}}) {
    const ProgramResult result = run({"sweep", "tiny.toml", "--seeds", seeds, "--grid", axis});
    EXPECT_EQ(result.exit_code, 2) << seeds;
    const std::string part = "expected at most 10000 runs in all";
    EXPECT_NE(result.errors.find(part), std::string::npos) << result.errors;
  }
  ASSERT_EQ(train("sweep", {"--training.tokens=64"}).exit_code, 0);
  expect_error({"model.num_layers=1,2"}, "run.folder = sweep: holds a run");
}

}  // namespace
