// A run in its folder: which held-out text it measures, how it ends, and how it goes on.

#include "reynard/training/run.h"

#include "reynard/checkpoint/run_folder.h"
#include "reynard/config/fields.h"
#include "reynard/training/run_checks.h"
#include "tests/support/errors.h"
#include "tests/training/text.h"
#include "tests/training/tiny.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace reynard::training {
namespace {

namespace fs = std::filesystem;
using data::LoaderMode;

// One step that changes nothing, of a model whose predictions differ from token to token.
Experiment still_run(const test::TempDir& folder, const std::vector<Document>& held_out) {
  Experiment experiment = tiny_experiment();
  experiment.data.path = write_text(folder / "train.tokens", random_documents({90, 70, 80}, 1));
  experiment.validation.path = write_text(folder / "held_out.tokens", held_out);
  experiment.run.folder = (folder / "run").string();
  experiment.model.initializer_range = 0.5;
  experiment.optimizer.learning_rate = 0;
  experiment.training.tokens = experiment.tokens_per_step();
  return experiment;
}

double held_out_loss(Experiment experiment) {
  fs::remove_all(experiment.run.folder);
  experiment.training.tokens = experiment.tokens_per_step();
  return run(experiment, {}).validation_loss.value();
}

std::vector<nlohmann::json> lines_of(const fs::path& folder) {
  std::vector<nlohmann::json> lines;
  std::istringstream file(test::read_file(folder / "metrics.jsonl"));
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

// What is the same however long it takes.
std::vector<nlohmann::json> metrics(const fs::path& folder) {
  std::vector<nlohmann::json> lines = lines_of(folder);
  for (nlohmann::json& line : lines) {
    for (const char* key :
         {"tokens_per_s", "seconds", "peak_memory_bytes", "peak_gpu_memory_bytes"}) {
      line.erase(key);
    }
  }
  return lines;
}

}  // namespace

// Fewer documents than rows of a batch, and a last batch that is not full.
TEST(Run, HeldOutTextIsTheSameForEveryBatchSize) {
  const test::TempDir folder;
  Experiment experiment = still_run(folder, random_documents({100, 130}, 2));
  for (const LoaderMode mode : {LoaderMode::kOrdered, LoaderMode::kPacked, LoaderMode::kSlices}) {
    experiment.data.mode = mode;
    experiment.data.batch_size = 1;
    const double loss = held_out_loss(experiment);
    EXPECT_GT(loss, 0.5);
    for (const int64_t rows : {2, 8}) {
      experiment.data.batch_size = rows;
      EXPECT_NEAR(held_out_loss(experiment), loss, 1e-6 * loss) << rows << " rows";
    }
  }
}

// Contexts then see those of other rows in training; what is measured is what the model does with a
// text of its own.
TEST(Run, HeldOutTextIsTheSameForEveryBatchSizeWithCrossbatch) {
  const test::TempDir folder;
  Experiment experiment = still_run(folder, random_documents({100, 130}, 2));
  experiment.model.mixer = "memory_attention";
  experiment.model.memory.window = 4;
  experiment.model.memory.layers = {1};
  experiment.crossbatch.contexts = 3;
  experiment.data.mode = LoaderMode::kOrdered;
  std::vector<double> losses;
  for (const auto rule : {models::CrossbatchRule::kRows, models::CrossbatchRule::kPacks}) {
    experiment.crossbatch.rule = rule;
    for (const int64_t rows : {1, 2, 4}) {
      experiment.data.batch_size = rows;
      losses.push_back(held_out_loss(experiment));
      EXPECT_NEAR(losses.back(), losses[0], 1e-6 * losses[0])
          << config::name_of(rule) << ", " << rows << " rows";
    }
  }
}

// The seeds of a sweep are compared.
TEST(Run, HeldOutTextIsTheSameForEverySeed) {
  const test::TempDir folder;
  Experiment experiment = still_run(folder, random_documents({90, 40, 70, 50, 60}, 3));
  experiment.validation.tokens = 48;
  for (const LoaderMode mode :
       {LoaderMode::kOrdered, LoaderMode::kPacked, LoaderMode::kSlices, LoaderMode::kPadded}) {
    experiment.data.mode = mode;
    experiment.data.seed = 0;
    const double loss = held_out_loss(experiment);
    for (const int64_t seed : {1, 2}) {
      experiment.data.seed = seed;
      EXPECT_EQ(held_out_loss(experiment), loss) << "seed " << seed;
    }
  }
}

TEST(Run, LossIsTheMeanOfTheLastTenth) {
  const test::TempDir folder;
  Experiment experiment = still_run(folder, random_documents({90}, 4));
  experiment.validation.path.clear();
  experiment.optimizer.learning_rate = 1e-2;
  experiment.training.tokens = 40 * experiment.tokens_per_step();
  experiment.training.log_every = 1;
  const RunResult result = run(experiment, {});
  const std::vector<nlohmann::json> lines = metrics(experiment.run.folder);
  ASSERT_EQ(lines.size(), 40U);
  double sum = 0;
  for (size_t i = 36; i < 40; ++i) sum += lines[i].at("loss").get<double>();
  EXPECT_NEAR(result.loss, sum / 4, 1e-9);
}

// Its first step throws the weights so far that no later one is finite.
Experiment diverging_run(const test::TempDir& folder) {
  Experiment experiment = still_run(folder, random_documents({90}, 4));
  experiment.validation.path.clear();
  experiment.schedule.warmup_fraction = 0;
  experiment.optimizer.learning_rate = 1e15;
  return experiment;
}

// Nobody goes on from a checkpoint of a streak of skipped steps while it may pass.
TEST(Run, SkippedStepsAreNotSavedUntilTheEnd) {
  const test::TempDir folder;
  Experiment experiment = diverging_run(folder);
  experiment.training.tokens = 6 * experiment.tokens_per_step();
  experiment.training.checkpoint_every = experiment.tokens_per_step();
  experiment.training.keep_checkpoints = 10;
  EXPECT_THROW(run(experiment, {}), Diverged);
  const auto saved = checkpoint::list_checkpoints(experiment.run.folder);
  ASSERT_EQ(saved.size(), 2U);
  EXPECT_EQ(saved[0], checkpoint::checkpoint_folder(experiment.run.folder, 1));
  EXPECT_EQ(saved[1], checkpoint::checkpoint_folder(experiment.run.folder, 6));
}

// Its lines tell what went wrong; without a line there is nothing to keep.
TEST(Run, MetricsOfARunThatDivergedStay) {
  const test::TempDir folder;
  Experiment experiment = diverging_run(folder);
  experiment.training.tokens = 60 * experiment.tokens_per_step();
  experiment.training.checkpoint_every = 0;
  experiment.training.max_skipped_steps = 3;
  experiment.training.log_every = 1;
  EXPECT_THROW(run(experiment, {}), Diverged);
  EXPECT_EQ(metrics(experiment.run.folder).size(), 3U);
  EXPECT_TRUE(fs::exists(folder / "run/experiment.toml"));
  fs::remove_all(experiment.run.folder);
  experiment.training.log_every = 10;
  EXPECT_THROW(run(experiment, {}), Diverged);
  EXPECT_FALSE(fs::exists(experiment.run.folder));
}

// However few steps are left for a loss that is not finite.
TEST(Run, EndingWithASkippedStepIsDiverging) {
  const test::TempDir folder;
  Experiment experiment = diverging_run(folder);
  experiment.training.tokens = 5 * experiment.tokens_per_step();
  EXPECT_THROW(run(experiment, {}), Diverged);
  EXPECT_FALSE(fs::exists(folder / "run/result.json"));
  EXPECT_FALSE(fs::exists(folder / "run/model"));
  EXPECT_THROW(run(experiment, {.resume = true}), Diverged);
}

// The last update is followed by no step.
TEST(Run, AHeldOutLossThatIsNotFiniteIsDiverging) {
  const test::TempDir folder;
  Experiment experiment = still_run(folder, random_documents({90}, 4));
  experiment.schedule.warmup_fraction = 0;
  experiment.optimizer.learning_rate = 1e15;
  EXPECT_THROW(run(experiment, {}), Diverged);
  EXPECT_FALSE(fs::exists(folder / "run/result.json"));
}

TEST(Run, AMeasurementThatWasStoppedIsMadeByTheRunThatGoesOn) {
  const test::TempDir folder;
  Experiment experiment = still_run(folder, random_documents({40'000}, 5));
  experiment.optimizer.learning_rate = 1e-2;
  experiment.training.tokens = 8 * experiment.tokens_per_step();
  experiment.training.log_every = 3;
  experiment.training.profile_step = 4;
  experiment.validation.every = 4 * experiment.tokens_per_step();
  run(experiment, {});
  const std::vector<nlohmann::json> straight = metrics(experiment.run.folder);
  ASSERT_EQ(straight.size(), 4U);
  EXPECT_TRUE(straight[1].contains("validation_loss")) << straight[1];

  experiment.run.folder = (folder / "stopped").string();
  std::atomic<bool> stop = false;
  // Step 4 is written and then measured, for a second or so.
  std::jthread stops_measurement([&](const std::stop_token& ended) {
    while (!ended.stop_requested() && !fs::exists(folder / "stopped/profile.json")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    stop = true;
  });
  const RunResult stopped = run(experiment, {.stop = &stop});
  stops_measurement.request_stop();
  stops_measurement.join();
  EXPECT_FALSE(stopped.finished);
  EXPECT_EQ(stopped.steps, 4);
  EXPECT_FALSE(metrics(experiment.run.folder).back().contains("validation_loss"));
  run(experiment, {.resume = true});
  EXPECT_EQ(metrics(experiment.run.folder), straight);
}

// The second measurement is due when half of the time that the first one took is left.
TEST(Run, NoMeasurementBeginsThatTheBudgetOfTimeHasNoRoomFor) {
  const test::TempDir folder;
  Experiment experiment = still_run(folder, random_documents({20'000}, 5));
  experiment.training.tokens = 0;
  experiment.training.minutes = 3.0 / 60;
  experiment.training.log_every = 1;
  experiment.validation.every = experiment.tokens_per_step();
  const auto wait = [&](const RunProgress& progress) {
    if (progress.step != 1) return;
    const double before = lines_of(experiment.run.folder).at(0).at("seconds");
    const double left = progress.seconds_left, now = left / (1 - progress.fraction) - left;
    const double half = (now - before) / 2;
    std::this_thread::sleep_for(std::chrono::duration<double>(left - half));
  };
  run(experiment, {.progress = wait});
  const std::vector<nlohmann::json> lines = lines_of(experiment.run.folder);
  ASSERT_FALSE(lines.empty());
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].contains("validation_loss"), i == 0) << lines[i];
  }
}

TEST(Run, MoreRowsThanDocumentsAreNamed) {
  const test::TempDir folder;
  Experiment experiment = still_run(folder, random_documents({90}, 4));
  experiment.data.mode = LoaderMode::kOrdered;
  experiment.data.batch_size = 2;
  EXPECT_TRUE(notes_on_text(experiment).empty());
  experiment.training.accumulation = 2;
  const std::vector<std::string> notes = notes_on_text(experiment);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_SAYS(
      notes[0],
      fmt::format("data.mode = \"ordered\": a step has 4 rows, which walk through documents "
                  "of their own; data.path = {} has 3 documents",
                  experiment.data.path));
  experiment.data.mode = LoaderMode::kPacked;
  EXPECT_TRUE(notes_on_text(experiment).empty());
}

}  // namespace reynard::training
