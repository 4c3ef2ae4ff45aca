// reynard train and reynard sweep as a user runs them: what they write, how they stop and go on.

#include "reynard/checkpoint/directory.h"
#include "reynard/checkpoint/sha256.h"
#include "reynard/data/token_file.h"
#include "tests/support/eventually.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace reynard;
namespace fs = std::filesystem;
using test::ProgramResult;

constexpr const char* kExperiment = R"(
[model]
hidden_size = 16
num_layers = 1
intermediate_size = 16
[model.attention]
num_heads = 2
qk_norm = "per_head"
output_gate = "sigmoid"
output_norm = true
key_shift = true
value_shift = true
[data]
path = "text/train.tokens"
batch_size = 2
length = 32
[optimizer]
learning_rate = 1e-2
[schedule]
warmup_fraction = 0.1
[training]
tokens = 3200
log_every = 5
checkpoint_every = 64
permanent_every = 1600
)";

constexpr int64_t kTokensPerStep = 64;

class TrainCommand : public testing::Test {
 protected:
  TrainCommand() {
    // Two threads that wait for each other on a busy machine would make these tests slow.
    setenv("OMP_NUM_THREADS", "1", 1);
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i % 97) + " of the text\n";
    test::write_file(folder_ / "text.txt", text);
    test::write_file(folder_ / "tiny.toml", kExperiment);
    EXPECT_EQ(run({"prepare", "text.txt", "-o", "text", "--held-out", "0.2"}).exit_code, 0);
  }
  ProgramResult run(std::vector<std::string> arguments, double seconds_limit = 60) {
    return test::run_program({.arguments = std::move(arguments),
                              .folder = folder_.path().string(),
                              .seconds_limit = seconds_limit});
  }
  ProgramResult train(const std::string& name, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"train", "tiny.toml", "--quiet", "--run.folder=" + name});
    return run(std::move(more));
  }
  std::string weights_hash(const std::string& name) {
    return checkpoint::sha256_hex_of_file(folder_ / (name + "/model/model.safetensors"));
  }
  nlohmann::json json(const std::string& file) {
    return nlohmann::json::parse(test::read_file(folder_ / file));
  }
  std::vector<std::string> checkpoints(const std::string& name) {
    std::vector<std::string> found;
    const fs::path folder = folder_ / (name + "/checkpoints");
    if (!fs::exists(folder)) return found;
    for (const auto& entry : fs::directory_iterator(folder)) {
      found.push_back(entry.path().filename());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  int64_t newest_checkpoint(const std::string& name) {
    int64_t newest = 0;
    for (const std::string& found : checkpoints(name)) {
      if (found.starts_with("step-")) newest = std::stoll(found.substr(std::strlen("step-")));
    }
    return newest;
  }
  // Of the whole lines of metrics.jsonl, whose steps rise; 0 where there is none.
  int64_t last_logged_step(const std::string& name) {
    const fs::path file = folder_ / (name + "/metrics.jsonl");
    if (!fs::exists(file)) return 0;
    std::istringstream metrics(test::read_file(file));
    int64_t before = 0;
    for (std::string line; std::getline(metrics, line) && !metrics.eof();) {
      const int64_t step = nlohmann::json::parse(line).at("step");
      EXPECT_GT(step, before);
      before = step;
    }
    return before;
  }
  test::TempDir folder_;
};

TEST_F(TrainCommand, WritesTheRunFolder) {
  const ProgramResult result =
      train("run", {"--validation.path=text/held_out.tokens", "--validation.tokens=256"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("run: 50 steps, 3200 tokens"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("held-out loss"), std::string::npos) << result.output;
  for (const char* file : {"run/experiment.toml",
                           "run/run.json",
                           "run/result.json",
                           "run/metrics.jsonl",
                           "run/model/config.json",
                           "run/model/model.safetensors"}) {
    EXPECT_TRUE(fs::exists(folder_ / file)) << file;
  }
  EXPECT_EQ(json("run/run.json").at("name"), "run");
  EXPECT_EQ(json("run/run.json").at("train_length"), 32);
  EXPECT_EQ(json("run/result.json").at("tokens"), 3200);
  // Two newest and the two permanent ones (1600 and 3200 tokens); the newest is permanent.
  EXPECT_EQ(
      checkpoints("run"),
      (std::vector<std::string>{
          "step-000000000025", "step-000000000048", "step-000000000049", "step-000000000050"}));
  std::istringstream metrics(test::read_file(folder_ / "run/metrics.jsonl"));
  int64_t lines = 0;
  double first_loss = 0, last_loss = 0;
  for (std::string line; std::getline(metrics, line); ++lines) {
    const auto object = nlohmann::json::parse(line);
    EXPECT_EQ(object.at("step"), 5 * (lines + 1));
    for (const char* key : {"tokens",
                            "lr",
                            "grad_norm",
                            "tokens_per_s",
                            "seconds",
                            "skipped_steps",
                            "peak_memory_bytes",
                            "gates_closed",
                            "gates_open"}) {
      EXPECT_TRUE(object.at(key).is_number()) << key;
    }
    (lines == 0 ? first_loss : last_loss) = object.at("loss");
  }
  EXPECT_EQ(lines, 10);
  EXPECT_LT(last_loss, first_loss - 1);
}

TEST_F(TrainCommand, RefusesAFolderThatIsNotEmpty) {
  ASSERT_EQ(train("run", {"--training.tokens=128"}).exit_code, 0);
  const ProgramResult again = train("run", {"--training.tokens=128"});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_NE(again.errors.find("is not empty; add --resume"), std::string::npos) << again.errors;
  const ProgramResult other = train("run", {"--resume", "--model.hidden_size=32"});
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.errors.find("section [model] differs"), std::string::npos) << other.errors;
}

// A second process would write the same checkpoints and lines.
TEST_F(TrainCommand, AFolderBelongsToOneProcess) {
  fs::create_directories(folder_ / "run");
  {
    const checkpoint::FolderLock lock(folder_ / "run");
    const ProgramResult result = train("run", {"--training.tokens=128"});
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.errors.find("run: another process is writing there"), std::string::npos)
        << result.errors;
    EXPECT_TRUE(fs::is_empty(folder_ / "run"));
    // What the other one has written is not this one's to remove.
    std::ofstream(folder_ / "run/experiment.toml") << "\n";
    EXPECT_EQ(train("run", {"--resume", "--training.tokens=128"}).exit_code, 2);
    EXPECT_TRUE(fs::exists(folder_ / "run/experiment.toml"));
    fs::remove(folder_ / "run/experiment.toml");
  }
  EXPECT_EQ(train("run", {"--training.tokens=128"}).exit_code, 0);
}

// The second of two that begin at once loses while the first one makes its model, and leaves alone
// what that one writes.
TEST_F(TrainCommand, OfTwoThatBeginAtOnceOneIsRefused) {
  std::jthread other([&] { EXPECT_EQ(train("run", {"--training.tokens=1280"}).exit_code, 0); });
  ASSERT_TRUE(test::eventually([&] { return fs::exists(folder_ / "run"); }));
  const ProgramResult second = train("run", {"--training.tokens=1280"});
  other.join();
  EXPECT_EQ(second.exit_code, 2);
  for (const char* file : {"run.json", "experiment.toml", "metrics.jsonl", "result.json"}) {
    EXPECT_TRUE(fs::exists(folder_ / "run" / file)) << file;
  }
}

TEST_F(TrainCommand, MistakesAreReportedTogetherWithTheirPlace) {
  const ProgramResult result = train("run",
                                     {"--training.tokens=0",
                                      "--optimizer.beta1=1",
                                      "--schedule.warmup_tokens=5",
                                      "--model.hiden_size=3"});
  EXPECT_EQ(result.exit_code, 2);
  for (const char* part : {"training.tokens", "optimizer.beta1", "warmup", "hiden_size"}) {
    EXPECT_NE(result.errors.find(part), std::string::npos) << part << " in " << result.errors;
  }
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(TrainCommand, LongerBudgetGoesOnFromTheEnd) {
  ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
  ASSERT_EQ(train("run", {"--resume", "--training.tokens=1280"}).exit_code, 0);
  EXPECT_EQ(json("run/result.json").at("steps"), 20);
  // A finished run stays as it is.
  const std::string before = test::read_file(folder_ / "run/result.json");
  ASSERT_EQ(train("run", {"--resume", "--training.tokens=1280"}).exit_code, 0);
  EXPECT_EQ(test::read_file(folder_ / "run/result.json"), before);
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
  std::string bytes = test::read_file(folder_ / "text/train.tokens");
  // A letter of the text becomes another one: header and ends of documents stay.
  bytes[bytes.find('l', 4096)] = 'k';
  test::write_file(folder_ / "text/train.tokens", bytes);
  const ProgramResult result = train("run", {"--resume", "--training.tokens=3840"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.errors.find("resume with the settings and the token file of the run"),
            std::string::npos)
      << result.errors;
}

TEST_F(TrainCommand, HeldOutTextIsMeasuredOnce) {
  const auto loss = [&](const std::string& name, const std::string& tokens) {
    const ProgramResult result = train(name,
                                       {"--training.tokens=640",
                                        "--validation.path=text/held_out.tokens",
                                        "--validation.tokens=" + tokens});
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return json(name + "/result.json").at("validation_loss").get<double>();
  };
  const auto header = data::TokenFile(folder_ / "text/held_out.tokens").header();
  const int64_t batches = header.num_tokens / kTokensPerStep;
  ASSERT_GE(batches, 2);
  const double once = loss("once", std::to_string(batches * kTokensPerStep));
  EXPECT_EQ(loss("more", "1000000000000"), once);
  EXPECT_NE(loss("less", std::to_string((batches - 1) * kTokensPerStep)), once);
}

TEST_F(TrainCommand, NothingToLearnIsAnError) {
  const auto error = [&](std::vector<std::string> more) {
    const ProgramResult result = train("run", std::move(more));
    EXPECT_EQ(result.exit_code, 2);
    return result.errors;
  };
  EXPECT_NE(error({"--data.answer_mark=300"}).find("expected a token id below 258"),
            std::string::npos);
  EXPECT_NE(error({"--data.answer_mark=200"}).find("no token of 50 steps counts"),
            std::string::npos);
  fs::remove_all(folder_ / "run");
  EXPECT_NE(error({"--data.answer_tokens=2"}).find("has no effect without"), std::string::npos);
}

TEST_F(TrainCommand, FilesThatSayStrangeThingsDoNotStopARun) {
  ASSERT_EQ(train("run").exit_code, 0);
  test::write_file(folder_ / "run/result.json", "{}");
  test::write_file(folder_ / "run/metrics.jsonl", "{\"step\": \"x\"}\n");
  test::write_file(folder_ / "run/run.json", R"({"earlier": {}, "command": 3})");
  test::write_file(folder_ / "run/checkpoints/step-000000000025/trainer.json",
                   R"({"permanent": 1})");
  const ProgramResult result = train("run", {"--resume", "--training.tokens=3840"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(json("run/result.json").at("steps"), 60);
  EXPECT_EQ(last_logged_step("run"), 60);
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
}

// Spinning threads make training many times slower where another process wants a core.
TEST_F(TrainCommand, ThreadsWaitPassivelyUnlessTheUserSaysOtherwise) {
  unsetenv("OMP_WAIT_POLICY");
  ASSERT_EQ(train("run", {"--training.tokens=64"}).exit_code, 0);
  EXPECT_EQ(json("run/run.json").at("machine").at("omp_wait_policy"), "passive");
  setenv("OMP_WAIT_POLICY", "active", 1);
  ASSERT_EQ(train("active", {"--training.tokens=64"}).exit_code, 0);
  EXPECT_EQ(json("active/run.json").at("machine").at("omp_wait_policy"), "active");
  setenv("OMP_WAIT_POLICY", "passive", 1);
}

TEST_F(TrainCommand, FullDiskIsAnErrorAndTheCheckpointSurvives) {
  ASSERT_EQ(train("run", {"--training.tokens=640"}).exit_code, 0);
  const ProgramResult full = test::run_program({.arguments = {"train",
                                                              "tiny.toml",
                                                              "--quiet",
                                                              "--run.folder=run",
                                                              "--resume",
                                                              "--training.tokens=1280"},
                                                .folder = folder_.path().string(),
                                                .file_limit = 8192});
  EXPECT_EQ(full.exit_code, 2) << full.errors;
  EXPECT_EQ(std::count(full.errors.begin(), full.errors.end(), '\n'), 1) << full.errors;
  EXPECT_NE(full.errors.find("run/"), std::string::npos) << full.errors;
  EXPECT_EQ(checkpoints("run").back(), "step-000000000010");
  const ProgramResult again = train("run", {"--resume", "--training.tokens=1280"});
  EXPECT_EQ(again.exit_code, 0) << again.errors;
}

TEST_F(TrainCommand, FullDiskAtTheFirstCheckpointLeavesNothing) {
  const ProgramResult full =
      test::run_program({.arguments = {"train", "tiny.toml", "--quiet", "--run.folder=run"},
                         .folder = folder_.path().string(),
                         .file_limit = 8192});
  EXPECT_EQ(full.exit_code, 2) << full.errors;
  EXPECT_FALSE(fs::exists(folder_ / "run"));
  EXPECT_EQ(train("run").exit_code, 0);
}

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

TEST_F(TrainCommand, NamesThatAreNotUTF8) {
  const ProgramResult refused = run({"train", "tiny.toml", "--run.folder=caf\xe9"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.errors, "reynard: --run.folder = caf\xe9; must be UTF-8 text\n");
  fs::copy_file(folder_ / "tiny.toml", folder_ / "caf\xe9.toml");
  const ProgramResult named =
      run({"train", "caf\xe9.toml", "--quiet", "--run.folder=run", "--training.tokens=128"});
  EXPECT_EQ(named.exit_code, 0) << named.errors;
  EXPECT_EQ(json("run/run.json").at("command")[2], "caf\uFFFD.toml");
}

TEST_F(TrainCommand, SweepRejects) {
  const ProgramResult result = run({"sweep", "tiny.toml", "--grid", "optimizer.learning_rate"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.errors.find("expected section.key=value"), std::string::npos) << result.errors;
}

}  // namespace
