// reynard train --resume: how runs that were stopped, killed or damaged go on.

#include "tests/cli/train_command.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

namespace {

using namespace reynard;
namespace fs = std::filesystem;
using test::kTokensPerStep;
using test::ProgramResult;
using test::TrainCommand;

TEST_F(TrainCommand, LongerBudgetGoesOnFromTheEnd) {
  ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
  ASSERT_EQ(train("run", {"--resume", "--training.tokens=1280"}).exit_code, 0);
  EXPECT_EQ(json("run/result.json").at("steps"), 20);
  // A finished run stays as it is.
  const std::string before = test::read_file(folder_ / "run/result.json");
  ASSERT_EQ(train("run", {"--resume", "--training.tokens=1280"}).exit_code, 0);
  EXPECT_EQ(test::read_file(folder_ / "run/result.json"), before);
}

// Programs of before took keys that nothing reads, and recorded them.
TEST_F(TrainCommand, RunsThatRecordUnreadKeysGoOn) {
  ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
  set_in_experiment("run", "decay_fraction", "0.25");
  set_in_experiment("run", "random_padding", "false");
  set_in_experiment("run", "accuracy", "0.5");
  const ProgramResult result = train("run", {"--resume", "--training.tokens=1280"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(json("run/result.json").at("steps"), 20);
  EXPECT_EQ(result.errors.find("other settings"), std::string::npos) << result.errors;
  // What is read still has to be the same.
  set_in_experiment("run", "batch_size", "4");
  expect_refused("run", {"--resume", "--training.tokens=1920"}, "section [data] differs");
}

// Killed after the last checkpoint and before the result: all that the result says is known.
TEST_F(TrainCommand, AResultLostIsWrittenAgain) {
  ASSERT_EQ(train("run").exit_code, 0);
  auto before = json("run/result.json");
  fs::remove(folder_ / "run/result.json");
  ASSERT_EQ(train("run", {"--resume"}).exit_code, 0);
  auto after = json("run/result.json");
  for (auto* result : {&before, &after}) result->erase("seconds");
  EXPECT_EQ(after, before);
  // The same from the last checkpoint but one.
  fs::remove(folder_ / "run/result.json");
  fs::remove_all(folder_ / "run/checkpoints/step-000000000050");
  ASSERT_EQ(train("run", {"--resume"}).exit_code, 0);
  after = json("run/result.json");
  after.erase("seconds");
  EXPECT_EQ(after, before);
}

// Killed between the last checkpoint of a run that was made longer and its result: the result that
// is there is the shorter run's.
TEST_F(TrainCommand, AResultOfBeforeIsNotThatOfALongerRun) {
  ASSERT_EQ(train("run").exit_code, 0);
  const std::string shorter = test::read_file(folder_ / "run/result.json");
  ASSERT_EQ(train("run", {"--resume", "--training.tokens=3840"}).exit_code, 0);
  const std::string weights = weights_hash("run");
  test::write_file(folder_ / "run/result.json", shorter);
  fs::remove_all(folder_ / "run/model");
  ASSERT_EQ(train("run", {"--resume", "--training.tokens=3840"}).exit_code, 0);
  EXPECT_EQ(json("run/result.json").at("steps"), 60);
  EXPECT_EQ(weights_hash("run"), weights);
}

// Beside the experiment.toml of the longer run it would be taken for that one's.
TEST_F(TrainCommand, ARunThatGoesOnHasNoResult) {
  ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
  const ProgramResult diverged =
      train("run", {"--resume", "--training.tokens=6400", "--optimizer.learning_rate=1e30"});
  ASSERT_EQ(diverged.exit_code, 2) << diverged.errors;
  EXPECT_FALSE(fs::exists(folder_ / "run/result.json"));
}

// experiment.toml then names the held-out text already.
TEST_F(TrainCommand, AMeasurementThatFailedIsMadeByTheSameCommand) {
  ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
  const std::vector<std::string> measured = {
      "--resume", "--training.tokens=640", "--validation.path=text/held_out.tokens"};
  fs::rename(folder_ / "run/model", folder_ / "model");
  test::write_file(folder_ / "run/model", "in the way");
  ASSERT_EQ(train("run", measured).exit_code, 2);
  fs::remove(folder_ / "run/model");
  ASSERT_EQ(train("run", measured).exit_code, 0);
  EXPECT_TRUE(json("run/result.json").contains("validation_loss"));
}

TEST_F(TrainCommand, DamagedCheckpointsOfLaterStepsDoNotCostNewOnes) {
  ASSERT_EQ(train("run").exit_code, 0);
  fs::remove_all(folder_ / "run/checkpoints/step-000000000050");
  fs::remove_all(folder_ / "run/checkpoints/step-000000000048");
  fs::remove(folder_ / "run/checkpoints/step-000000000049/model.safetensors");
  ASSERT_EQ(train("run", {"--resume", "--training.tokens=1920", "--training.keep_checkpoints=1"})
                .exit_code,
            0);
  EXPECT_EQ(
      checkpoints("run"),
      (std::vector<std::string>{"step-000000000025", "step-000000000030", "step-000000000049"}));
}

TEST_F(TrainCommand, AnotherTextOfTheSameSizeIsNotGoneOnWith) {
  ASSERT_EQ(train("run").exit_code, 0);
  const fs::path text = folder_ / "text/train.tokens";
  test::write_file(text, test::with_another_letter(test::read_file(text)));
  expect_refused("run",
                 {"--resume", "--training.tokens=3840"},
                 "resume with the settings and the token file of the run");
}

TEST_F(TrainCommand, KilledTwentyTimesEndsWithTheSameWeights) {
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(train("straight").exit_code, 0);
  double whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::mt19937 random(20);  // kill times differ between machines anyway
  std::uniform_real_distribution<double> fraction(0.1, 0.9);
  // Each chain of kills that comes to the end is compared, and the last one.
  const auto expect_same_end = [&] {
    EXPECT_EQ(weights_hash("killed"), weights_hash("straight"));
    EXPECT_EQ(json("killed/result.json").at("tokens"), 3200);
  };
  int killed = 0;
  for (int run_number = 0; run_number < 100 && killed < 20; ++run_number) {
    const bool anew = !fs::exists(folder_ / "killed");
    const ProgramResult result =
        run({"train", "tiny.toml", "--quiet", "--run.folder=killed", "--resume"},
            fraction(random) * whole);
    ASSERT_TRUE(result.exit_code == 137 || result.exit_code == 0) << result.errors;
    if (result.exit_code == 137) {
      ++killed;
      // A checkpoint is due with every step and a line of metrics stands before it.
      const int64_t logged = last_logged_step("killed");
      EXPECT_GE(newest_checkpoint("killed"), logged - 1);
    } else {
      if (anew) whole *= 0.9;  // the machine was slower when it was measured
      expect_same_end();
      fs::remove_all(folder_ / "killed");
    }
  }
  ASSERT_EQ(killed, 20);
  const ProgramResult last = train("killed", {"--resume"});
  ASSERT_EQ(last.exit_code, 0) << last.errors;
  expect_same_end();
  EXPECT_EQ(last_logged_step("killed"), 50);
}

TEST_F(TrainCommand, DamagedNewestCheckpointIsPassedOver) {
  ASSERT_EQ(train("straight").exit_code, 0);
  ASSERT_EQ(train("run").exit_code, 0);
  fs::remove(folder_ / "run/result.json");
  const fs::path damaged = folder_ / "run/checkpoints/step-000000000050/trainer.safetensors";
  std::string bytes = test::read_file(damaged);
  bytes[bytes.size() / 2] ^= 1;
  test::write_file(damaged, bytes);
  fs::remove(folder_ / "run/checkpoints/step-000000000049/model.safetensors");
  const ProgramResult result = train("run", {"--resume"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.errors.find("passed over a damaged checkpoint"), std::string::npos);
  EXPECT_EQ(weights_hash("run"), weights_hash("straight"));
}

// A line is the mean of all steps since the line before, those before a checkpoint included.
TEST_F(TrainCommand, LinesOfMetricsAreThoseOfARunThatWasNeverStopped) {
  const auto losses = [&] {
    std::vector<double> losses;
    std::istringstream metrics(test::read_file(folder_ / "run/metrics.jsonl"));
    for (std::string line; std::getline(metrics, line);) {
      losses.push_back(nlohmann::json::parse(line).at("loss"));
    }
    return losses;
  };
  ASSERT_EQ(train("run", {"--training.log_every=7"}).exit_code, 0);
  const std::vector<double> straight = losses();
  ASSERT_EQ(straight.size(), 8U);
  fs::remove(folder_ / "run/result.json");
  fs::remove_all(folder_ / "run/checkpoints/step-000000000050");
  fs::remove_all(folder_ / "run/checkpoints/step-000000000049");
  ASSERT_EQ(train("run", {"--resume", "--training.log_every=7"}).exit_code, 0);
  EXPECT_EQ(losses(), straight);
}

// Its checksums hold: the counters are checked by themselves.
TEST_F(TrainCommand, CountersOfAnotherKindArePassedOver) {
  for (const auto& [key, value, said] :
       {std::tuple("tokens", "\"x\"", "tokens = \"x\"; expected an integer\n"),
        {"recent_losses", "[1, null]", "recent_losses is not a list of numbers\n"}}) {
    ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
    const std::string checkpoint = "run/checkpoints/step-000000000010";
    auto counters = json(checkpoint + "/trainer.json");
    counters[key] = nlohmann::json::parse(value);
    test::write_file(folder_ / checkpoint / "trainer.json", counters.dump());
    auto checksums = json(checkpoint + "/checksums.json");
    checksums["files"].erase("trainer.json");
    test::write_file(folder_ / checkpoint / "checksums.json", checksums.dump());
    const ProgramResult result = train("run", {"--resume", "--training.tokens=1280"});
    ASSERT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_NE(result.errors.find("passed over a damaged checkpoint: " + checkpoint +
                                 ": trainer.json: " + said),
              std::string::npos)
        << result.errors;
    fs::remove_all(folder_ / "run");
  }
}

// The tokenizer of a checkpoint is checked with its weights.
TEST_F(TrainCommand, WithoutAValidCheckpointNothingIsResumed) {
  ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
  for (const auto& checkpoint : fs::directory_iterator(folder_ / "run/checkpoints")) {
    fs::resize_file(checkpoint.path() / "tokenizer_config.json", 20);
  }
  const ProgramResult result = train("run", {"--resume", "--training.tokens=1280"});
  EXPECT_EQ(result.exit_code, 2);
  for (const char* part : {"--resume: no checkpoint in", "tokenizer_config.json: has 20 bytes"}) {
    EXPECT_NE(result.errors.find(part), std::string::npos) << part << " in " << result.errors;
  }
}

TEST_F(TrainCommand, CtrlCWritesACheckpointAndGoesOn) {
  const ProgramResult result =
      test::run_program({.arguments = {"train",
                                       "tiny.toml",
                                       "--quiet",
                                       "--run.folder=stopped",
                                       "--training.checkpoint_every=0",
                                       "--training.permanent_every=0",
                                       "--training.tokens=100000000"},
                         .folder = folder_.path().string(),
                         .interrupt_at_file = folder_ / "stopped/metrics.jsonl"});
  EXPECT_EQ(result.exit_code, 130) << result.errors;
  EXPECT_NE(result.errors.find("stopped after step"), std::string::npos) << result.errors;
  ASSERT_EQ(checkpoints("stopped").size(), 1U);
  EXPECT_FALSE(fs::exists(folder_ / "stopped/result.json"));
  const int64_t steps = std::stoll(checkpoints("stopped")[0].substr(std::string("step-").size()));
  const ProgramResult again =
      train("stopped",
            {"--resume", "--training.tokens=" + std::to_string((steps + 10) * kTokensPerStep)});
  ASSERT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(json("stopped/result.json").at("steps"), steps + 10);
}

TEST_F(TrainCommand, ResumeSaysWhereItBegins) {
  const auto resume = [&](const char* tokens) {
    return run({"train", "tiny.toml", "--run.folder=run", "--resume", tokens}).errors;
  };
  const std::string first = resume("--training.tokens=64");
  EXPECT_NE(first.find("no checkpoint in run: a new run begins\n"), std::string::npos) << first;
  const std::string second = resume("--training.tokens=128");
  EXPECT_NE(second.find("resumed after step 1 (64 tokens)\n"), std::string::npos) << second;
}

// Weights that a run began with may be gone when it goes on from its own.
TEST_F(TrainCommand, ResumeNeedsNoFirstWeights) {
  ASSERT_EQ(train("first", {"--training.tokens=64"}).exit_code, 0);
  const char* start = "--run.start_from=first";
  ASSERT_EQ(train("run", {start, "--training.tokens=64"}).exit_code, 0);
  fs::rename(folder_ / "first", folder_ / "moved");
  const ProgramResult again = train("run", {"--resume", start, "--training.tokens=128"});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(json("run/result.json").at("steps"), 2);
  const ProgramResult anew = train("other", {start, "--training.tokens=64"});
  EXPECT_EQ(anew.exit_code, 2) << anew.errors;
}

// A run begins anew only in place of one that ended before its first checkpoint.
TEST_F(TrainCommand, ResumeOverwritesNothingButABegunRun) {
  ASSERT_EQ(train("run", {"--training.tokens=64"}).exit_code, 0);
  fs::remove_all(folder_ / "run/checkpoints");
  const std::string result = test::read_file(folder_ / "run/result.json");
  const ProgramResult finished = train("run", {"--resume", "--training.tokens=128"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_NE(finished.errors.find("--resume: run holds a trained model and no checkpoint to go on "
                                 "from; choose another run.folder, and "
                                 "--run.start_from=run/model to begin with its weights\n"),
            std::string::npos)
      << finished.errors;
  EXPECT_EQ(test::read_file(folder_ / "run/result.json"), result);

  fs::create_directory(folder_ / "notes");
  test::write_file(folder_ / "notes/metrics.jsonl", "mine");
  const ProgramResult foreign = train("notes", {"--resume", "--training.tokens=64"});
  EXPECT_EQ(foreign.exit_code, 2);
  EXPECT_NE(foreign.errors.find("--resume: notes is not the folder of a run: it has no run.json"),
            std::string::npos)
      << foreign.errors;
  EXPECT_EQ(test::read_file(folder_ / "notes/metrics.jsonl"), "mine");

  fs::remove_all(folder_ / "run/model");
  fs::remove(folder_ / "run/result.json");
  EXPECT_EQ(train("run", {"--resume", "--training.tokens=64"}).exit_code, 0);

  // Killed while it wrote its first file.
  fs::create_directory(folder_ / "killed");
  test::write_file(folder_ / "killed/.tmp-run.json", "{");
  const ProgramResult killed = train("killed", {"--resume", "--training.tokens=64"});
  EXPECT_EQ(killed.exit_code, 0) << killed.errors;
}

// Another rate is possible and never silent: the run's files know the commands that made it.
TEST_F(TrainCommand, ResumeNamesOtherSettingsAndKeepsTheEarlierCommands) {
  ASSERT_EQ(train("run", {"--training.tokens=64"}).exit_code, 0);
  const ProgramResult same = train("run", {"--resume", "--training.tokens=64"});
  EXPECT_EQ(same.errors, "");
  const ProgramResult other =
      train("run", {"--resume", "--training.tokens=128", "--optimizer.learning_rate=0.5"});
  ASSERT_EQ(other.exit_code, 0) << other.errors;
  EXPECT_NE(other.errors.find("goes on with other settings than before: "
                              "optimizer.learning_rate: 0.01 -> 0.5\n"),
            std::string::npos)
      << other.errors;
  const auto earlier = json("run/run.json").at("earlier");
  ASSERT_EQ(earlier.size(), 1U);
  EXPECT_EQ(earlier[0].at("until_step"), 1);
  EXPECT_EQ(earlier[0].at("command").back(), "--training.tokens=64");
  EXPECT_EQ(earlier[0].at("changed"),
            (std::vector<std::string>{"optimizer.learning_rate: 0.01 -> 0.5",
                                      "training.tokens: 64 -> 128"}));
}

// A command that was killed before its first checkpoint changed nothing that is left.
TEST_F(TrainCommand, ChangesThatNothingWasTrainedWithAreNotRecorded) {
  ASSERT_EQ(train("run", {"--training.tokens=64"}).exit_code, 0);
  auto killed = json("run/run.json");
  const auto first = killed.at("command");
  killed["earlier"] = {{{"command", first},
                        {"git_revision", killed.at("git_revision")},
                        {"until_step", 1},
                        {"changed", {"optimizer.learning_rate: 0.01 -> 0.5"}}}};
  killed["command"] = {"killed"};
  test::write_file(folder_ / "run/run.json", killed.dump());
  set_in_experiment("run", "learning_rate", "0.5");
  ASSERT_EQ(train("run", {"--resume", "--training.tokens=128"}).exit_code, 0);
  const auto earlier = json("run/run.json").at("earlier");
  ASSERT_EQ(earlier.size(), 1U);
  EXPECT_EQ(earlier[0].at("command"), first);
  EXPECT_EQ(earlier[0].at("changed"), std::vector<std::string>{"training.tokens: 64 -> 128"});
}

// The command is the same and the file is not.
TEST_F(TrainCommand, AnExperimentFileThatChangedOnTheWayIsRecorded) {
  const std::vector<std::string> command = {
      "train", "tiny.toml", "--quiet", "--run.folder=run", "--resume"};
  ASSERT_EQ(run(command).exit_code, 0);
  std::string text = test::read_file(folder_ / "tiny.toml");
  text.replace(text.find("tokens = 3200"), 13, "tokens = 3264");
  test::write_file(folder_ / "tiny.toml", text);
  ASSERT_EQ(run(command).exit_code, 0);
  const auto earlier = json("run/run.json").at("earlier");
  ASSERT_EQ(earlier.size(), 1U);
  EXPECT_EQ(earlier[0].at("changed"), std::vector<std::string>{"training.tokens: 3200 -> 3264"});
}

// experiment.toml says what was trained: neither a budget that is used up already nor another rate
// can be what the run had.
TEST_F(TrainCommand, AFinishedRunKeepsTheSettingsThatItWasTrainedWith) {
  ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
  const auto record = [&] {
    return test::read_file(folder_ / "run/experiment.toml") +
           test::read_file(folder_ / "run/run.json");
  };
  const std::string before = record();
  const std::string tokens = "--training.tokens=640";
  expect_refused(
      "run",
      {"--resume", tokens, "--optimizer.learning_rate=1e-4"},
      "--resume: the run in run has seen 640 tokens and ends there now: nothing would be "
      "trained with optimizer.learning_rate: 0.01 -> 1e-04; raise what ends it "
      "(training.tokens, training.minutes, training.accuracy), or give the settings of "
      "before\n");
  expect_refused("run", {"--resume", "--training.tokens=320"}, "training.tokens: 640 -> 320;");
  // What is no part of training is not recorded either.
  const ProgramResult logged = train("run", {"--resume", tokens, "--training.log_every=1"});
  EXPECT_EQ(logged.exit_code, 0);
  EXPECT_EQ(logged.errors,
            "reynard: nothing is left to train, so that these are not recorded: "
            "training.log_every: 5 -> 1\n");
  EXPECT_EQ(record(), before);
  // The held-out text is measured all the same.
  const ProgramResult measured = train(
      "run",
      {"--resume", tokens, "--training.log_every=1", "--validation.path=text/held_out.tokens"});
  EXPECT_EQ(measured.exit_code, 0) << measured.errors;
  EXPECT_TRUE(json("run/result.json").contains("validation_loss"));
  std::string expected = before;
  expected.replace(expected.find("path = \"\""), 9, "path = \"text/held_out.tokens\"");
  EXPECT_EQ(record(), expected);
}

TEST_F(TrainCommand, ABudgetOfTokensBelowWhatAMinuteTrainedIsRefused) {
  ASSERT_EQ(train("run", {"--training.tokens=0", "--training.minutes=0.01"}).exit_code, 0);
  const int64_t seen = json("run/result.json").at("tokens");
  ASSERT_GE(seen, kTokensPerStep);
  expect_refused("run",
                 {"--resume", "--training.tokens=64"},
                 "nothing would be trained with training.tokens: 0 -> 64, training.minutes: 0.01");
}

// Though checkpoints hold the weights.
TEST_F(TrainCommand, AModelThatIsGoneIsWrittenAgain) {
  ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
  const std::string weights = weights_hash("run");
  fs::remove_all(folder_ / "run/model");
  const ProgramResult again = train("run", {"--resume", "--training.tokens=640"});
  ASSERT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_EQ(weights_hash("run"), weights);
  EXPECT_EQ(json("run/result.json").at("steps"), 10);
  fs::remove_all(folder_ / "run/model");
  fs::remove_all(folder_ / "run/checkpoints");
  expect_refused("run",
                 {"--resume", "--training.tokens=640"},
                 "--resume: run holds the result of a finished run, and neither its model nor a "
                 "checkpoint to go on from; choose another run.folder, or remove this one\n");
}

// The loss of the text before is not that of this one.
TEST_F(TrainCommand, AnotherHeldOutTextIsMeasuredThoughTheRunHasEnded) {
  const auto loss = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--training.tokens=640"};
    all.insert(all.end(), more.begin(), more.end());
    if (!more.empty()) all.emplace_back("--validation.tokens=256");
    const ProgramResult result = train("run", all);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return json("run/result.json").value("validation_loss", 0.0);
  };
  EXPECT_EQ(loss({}), 0);
  const double held_out = loss({"--resume", "--validation.path=text/held_out.tokens"});
  EXPECT_GT(held_out, 0);
  const std::string weights = weights_hash("run");
  const double trained = loss({"--resume", "--validation.path=text/train.tokens"});
  EXPECT_GT(trained, 0);
  EXPECT_NE(trained, held_out);
  const fs::path text = folder_ / "text/held_out.tokens";
  EXPECT_EQ(loss({"--resume", "--validation.path=text/held_out.tokens"}), held_out);
  test::write_file(text, test::with_another_letter(test::read_file(text)));
  EXPECT_NE(loss({"--resume", "--validation.path=text/held_out.tokens"}), held_out);
  EXPECT_EQ(weights_hash("run"), weights);
}

}  // namespace
