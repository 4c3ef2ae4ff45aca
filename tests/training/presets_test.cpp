// Every experiment file of configs/ is complete and possible.

#include "reynard/config/config.h"
#include "reynard/training/experiment.h"
#include "reynard/training/unread_keys.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace reynard::training {
namespace {

namespace fs = std::filesystem;

TEST(Presets, EveryFileIsAnExperiment) {
  int num_files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(REYNARD_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++num_files;
    EXPECT_NO_THROW(config::read_toml<Experiment>(entry.path())) << entry.path();
  }
  EXPECT_GE(num_files, 31);
}

// The change must be an error that begins with the key's name, and goes with the key.
void expect_refused(const std::string& key, const std::function<void(Experiment&)>& change) {
  Experiment experiment;
  experiment.data.path = "train.tokens";
  experiment.training.tokens = 1;
  config::Problems none;
  experiment.check(none, "");
  EXPECT_TRUE(none.empty()) << none.lines()[0];
  change(experiment);
  config::Problems problems;
  experiment.check(problems, "");
  ASSERT_EQ(problems.lines().size(), 1) << key;
  EXPECT_EQ(problems.lines()[0].find(key), 0) << problems.lines()[0];
  without_unread_keys(experiment).check(none, "");
  EXPECT_TRUE(none.empty()) << none.lines()[0];
}

TEST(Experiment, KeysOfAModelThatNothingReadsAreNamed) {
  const auto model_refused = [](const std::string& key, auto change) {
    expect_refused(key, [&](Experiment& experiment) { change(experiment.model); });
  };
  using Model = models::DecoderConfig;
  model_refused("model.memory.window: needs model.mixer", [](Model& m) { m.memory.window = 64; });
  model_refused("model.memory.top_k", [](Model& m) { m.memory.top_k = 8; });
  model_refused("model.memory.merge",
                [](Model& m) { m.memory.merge = models::MemoryMerge::kGated; });
  model_refused("model.attention.rope_scaling.type",
                [](Model& m) { m.attention.rope_scaling.factor = 4; });
  model_refused("model.attention.log_pruning_tolerance", [](Model& m) {
    m.attention.forget_gate = models::ForgetGate::kNone;
    m.attention.log_pruning_tolerance = -10;
  });
  model_refused("model.attention.pruning_rule: needs a forget_gate", [](Model& m) {
    m.attention.forget_gate = models::ForgetGate::kNone;
    m.attention.pruning_rule = attention::PruningRule::kPublished;
  });
  model_refused("model.attention.rope_base: needs model.attention.rope = true",
                [](Model& m) { m.attention.rope_base = 10000; });
  model_refused("model.attention.qk_norm_eps: needs model.attention.qk_norm",
                [](Model& m) { m.attention.qk_norm_eps = 1e-6; });
}

TEST(Experiment, KeysThatNothingReadsAreNamed) {
  expect_refused("optimizer.beta2: needs optimizer.rule = \"adamw\"", [](Experiment& e) {
    e.optimizer.rule = OptimizerRule::kAdafactor;
    e.optimizer.beta2 = 0.99;
  });
  expect_refused("optimizer.epsilon", [](Experiment& e) {
    e.optimizer.rule = OptimizerRule::kAdafactor;
    e.optimizer.epsilon = 1e-6;
  });
  expect_refused("schedule.decay_fraction: needs schedule.shape = \"wsd\"",
                 [](Experiment& e) { e.schedule.decay_fraction = 0.1; });
  expect_refused("schedule.final_fraction: needs a schedule.shape that falls", [](Experiment& e) {
    e.schedule.shape = ScheduleShape::kConstant;
    e.schedule.final_fraction = 0.1;
  });
  expect_refused("validation.tokens: needs validation.path",
                 [](Experiment& e) { e.validation.tokens = 256; });
  expect_refused("data.repeat_min_length: needs data.repeat_fraction",
                 [](Experiment& e) { e.data.repeat_min_length = 8; });
  expect_refused("data.random_padding: needs data.mode = \"padded\"",
                 [](Experiment& e) { e.data.random_padding = false; });
  const auto cross_refused = [](const std::string& key, auto change) {
    expect_refused("crossbatch." + key + ": needs crossbatch.contexts",
                   [&](Experiment& experiment) { change(experiment.crossbatch); });
  };
  using Cross = CrossbatchConfig;
  cross_refused("rule", [](Cross& c) { c.rule = models::CrossbatchRule::kPacks; });
  cross_refused("documents", [](Cross& c) { c.documents = {2}; });
  cross_refused("order", [](Cross& c) { c.order = DocumentsOrder::kDrawn; });
  cross_refused("steps", [](Cross& c) { c.steps = {10}; });
  cross_refused("accuracy", [](Cross& c) { c.accuracy = 0.5; });
  cross_refused("loss", [](Cross& c) { c.loss = CrossbatchContexts::kLast; });
  cross_refused("stop_gradient", [](Cross& c) { c.stop_gradient = true; });
  cross_refused("memory", [](Cross& c) { c.memory = 64; });
}

// The rules compute in f32: with a factor of 1 there moments never change, and with an epsilon of 0
// tokens that the text lacks divide 0 by 0.
TEST(Experiment, NumbersThatF32RoundsAwayAreNamed) {
  const auto problem_of = [](auto change) {
    OptimizerConfig optimizer;
    change(optimizer);
    config::Problems problems;
    optimizer.check(problems, "optimizer");
    return problems.lines();
  };
  using Lines = std::vector<std::string>;
  using Config = OptimizerConfig;
  EXPECT_EQ(problem_of([](Config& c) { c.beta1 = 1 - 1e-10; }),
            Lines{"optimizer.beta1: must be below 1, rounded to f32 too"});
  EXPECT_EQ(problem_of([](Config& c) { c.beta2 = 1 - 1e-10; }),
            Lines{"optimizer.beta2: must be below 1, rounded to f32 too"});
  for (const double epsilon : {1e-50, 1e39}) {
    EXPECT_EQ(problem_of([&](Config& c) { c.epsilon = epsilon; }),
              Lines{"optimizer.epsilon: must be between 1.17549e-38 and 3.40282e+38, as f32 has"});
  }
  EXPECT_EQ(problem_of([](Config& c) { c.beta1 = c.beta2 = 1 - 1e-7, c.epsilon = 1e-30; }),
            Lines{});
}

// A run's file has every key; it was checked when the run began.
TEST(Experiment, RecordedFilesAreReadWithoutWhatNothingReads) {
  Experiment experiment;
  experiment.schedule.decay_fraction = 0.5;
  experiment.crossbatch.contexts = 2;
  experiment.crossbatch.order = DocumentsOrder::kDrawn;
  experiment.crossbatch.accuracy = 0.25;
  const test::TempDir folder;
  test::write_file(folder / "experiment.toml", config::to_toml(experiment));
  const Experiment read = read_recorded_experiment(folder / "experiment.toml");
  EXPECT_EQ(read.schedule.decay_fraction, Experiment().schedule.decay_fraction);
  EXPECT_EQ(read.crossbatch.accuracy, CrossbatchConfig().accuracy);
  EXPECT_EQ(read.crossbatch.order, DocumentsOrder::kDrawn);
  std::vector<std::string> unread;
  for (const auto& [key, needed] : unread_keys(experiment)) unread.push_back(key);
  EXPECT_EQ(unread, (std::vector<std::string>{"schedule.decay_fraction", "crossbatch.accuracy"}));
}

// Without gates neither counts.
TEST(Experiment, WhatOnlyAnUnreadKeyWouldReadIsUnread) {
  Experiment experiment;
  experiment.model.attention.forget_gate = models::ForgetGate::kNone;
  experiment.model.attention.log_pruning_tolerance = -10;
  experiment.model.attention.pruning_rule = attention::PruningRule::kPublished;
  EXPECT_EQ(unread_keys(experiment).size(), 2U);
  EXPECT_TRUE(unread_keys(without_unread_keys(experiment)).empty());
}

// One `./quickstart` prepares what all of them read.
TEST(Presets, AblationsReadTheTextOfTheQuickstart) {
  const fs::path configs = fs::path(REYNARD_SOURCE_DIR) / "configs";
  const auto quickstart = config::read_toml<Experiment>(configs / "quickstart/fox.toml");
  for (const auto& entry : fs::directory_iterator(configs / "ablation")) {
    const auto experiment = config::read_toml<Experiment>(entry.path());
    EXPECT_EQ(experiment.data.path, quickstart.data.path) << entry.path();
    EXPECT_EQ(fs::path(experiment.validation.path),
              fs::path(quickstart.data.path).parent_path() / "held_out.tokens")
        << entry.path();
  }
}

TEST(Presets, PaperRecipesTakeHalfAMillionTokensPerStep) {
  for (const char* size : {"125m", "360m", "760m"}) {
    for (const auto& entry :
         fs::directory_iterator(fs::path(REYNARD_SOURCE_DIR) / "configs" / size)) {
      const auto experiment = config::read_toml<Experiment>(entry.path());
      EXPECT_EQ(experiment.tokens_per_step(), 524'288) << entry.path();
      EXPECT_EQ(experiment.schedule.warmup_tokens, 512 * 524'288) << entry.path();
      EXPECT_EQ(experiment.training.tokens % 524'288, 0) << entry.path();
    }
  }
}

}  // namespace
}  // namespace reynard::training
