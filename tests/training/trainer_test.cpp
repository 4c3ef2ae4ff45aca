#include "reynard/training/trainer.h"

#include "reynard/checkpoint/run_folder.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/check.h"
#include "reynard/training/saved_run.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"
#include "tests/training/tiny.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace reynard::training {

namespace {

void expect_same_weights(Trainer& a, Trainer& b) {
  const auto other = weights_of(b);
  for (const auto& [name, value] : weights_of(a))
    EXPECT_BITWISE_EQUAL(value, other.at(name)) << name;
}

at::Tensor final_norm(Trainer& trainer) {
  at::Tensor found;
  trainer.model().parameters([&](const std::string& name, models::Parameter& parameter) {
    if (name == "model.norm.weight") found = parameter.value;
  });
  return found;
}

// Makes the next forward pass give infinite logits; the returned value undoes it.
at::Tensor break_model(Trainer& trainer) {
  const at::NoGradGuard no_grad;
  const at::Tensor good = final_norm(trainer).detach().clone();
  final_norm(trainer).fill_(std::numeric_limits<float>::infinity());
  return good;
}

void repair_model(Trainer& trainer, const at::Tensor& good) {
  const at::NoGradGuard no_grad;
  final_norm(trainer).copy_(good);
}

}  // namespace

TEST(Trainer, LearnsTheBatchesItSees) {
  Experiment experiment = tiny_experiment();
  experiment.training.tokens = 200 * 24;
  experiment.optimizer.learning_rate = 1e-2;
  const auto trainer = tiny_trainer(experiment);
  const StepResult first = trainer->step();
  EXPECT_NEAR(first.loss, std::log(17.0), 0.1);  // knows nothing yet
  EXPECT_EQ(first.step, 1);
  EXPECT_EQ(first.tokens, 24);
  EXPECT_EQ(first.learning_rate, 0);  // tokens seen before it: none
  StepResult last;
  while (!trainer->done()) last = trainer->step();
  EXPECT_EQ(trainer->steps(), 200);
  EXPECT_LT(last.loss, 0.6 * first.loss);
}

TEST(Trainer, AccumulationEqualsOneLargeBatch) {
  Experiment whole = tiny_experiment();
  whole.data.batch_size = 4;
  whole.schedule.warmup_fraction = 0;
  Experiment parts = whole;
  parts.data.batch_size = 1;
  parts.training.accumulation = 4;
  const auto a = tiny_trainer(whole), b = tiny_trainer(parts);
  for (int i = 0; i < 3; ++i) {
    const StepResult large = a->step(), accumulated = b->step();
    EXPECT_EQ(large.tokens, accumulated.tokens);
    EXPECT_EQ(large.loss_tokens, accumulated.loss_tokens);
    // Order of f32 additions differs; Adam may magnify that where a gradient is near zero.
    EXPECT_NEAR(large.loss, accumulated.loss, 1e-4);
    EXPECT_NEAR(large.grad_norm, accumulated.grad_norm, 1e-3 * large.grad_norm);
  }
}

// No token of its batches counts in the loss from the third on.
class SilencedLoader : public CountingLoader {
 public:
  using CountingLoader::CountingLoader;
  data::Batch next() override {
    data::Batch batch = CountingLoader::next();
    if (++batches_ > 2) batch.loss_mask.zero_();
    return batch;
  }

 private:
  int batches_ = 0;
};

TEST(Trainer, AStepOfWhichNoTokenCountsChangesNothing) {
  const Experiment experiment = tiny_experiment();
  Trainer trainer(experiment, std::make_unique<SilencedLoader>(experiment.data));
  for (int i = 0; i < 2; ++i) EXPECT_GT(trainer.step().loss_tokens, 0);
  const auto weights = weights_of(trainer);
  std::map<std::string, at::Tensor> moments;
  for (const auto& [name, tensor] : trainer.optimizer_state()) moments[name] = tensor.clone();
  const StepResult silent = trainer.step();
  EXPECT_EQ(silent.step, 3);
  EXPECT_EQ(silent.loss_tokens, 0);
  EXPECT_FALSE(silent.skipped);
  for (const auto& [name, value] : weights_of(trainer)) {
    EXPECT_BITWISE_EQUAL(value, weights.at(name)) << name;
  }
  for (const auto& [name, tensor] : trainer.optimizer_state()) {
    EXPECT_BITWISE_EQUAL(tensor, moments.at(name)) << name;
  }
}

TEST(Trainer, SavedAndRestoredContinuesBitForBit) {
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    Experiment experiment = tiny_experiment();
    experiment.training.precision = precision;
    const auto straight = tiny_trainer(experiment);
    for (int i = 0; i < 20; ++i) straight->step();

    const auto before = tiny_trainer(experiment);
    for (int i = 0; i < 10; ++i) before->step();
    const auto weights = weights_of(*before);
    const auto after = tiny_trainer(experiment);
    {
      const at::NoGradGuard no_grad;
      after->model().parameters([&](const std::string& name, models::Parameter& parameter) {
        parameter.value.copy_(weights.at(name));
      });
    }
    after->restore(before->counters(), before->optimizer_state());
    EXPECT_EQ(after->steps(), 10);
    for (int i = 0; i < 10; ++i) after->step();
    expect_same_weights(*straight, *after);
  }
}

// What is computed with in bf16 is a copy of the weights, which those of a folder replace.
TEST(Trainer, FirstWeightsAreComputedWith) {
  const test::TempDir folder;
  Experiment experiment = tiny_experiment();
  experiment.training.precision = Precision::kBF16;
  const auto source = tiny_trainer(experiment);
  for (int i = 0; i < 5; ++i) source->step();
  models::save_model(source->model(), folder / "model");
  experiment.run.seed = 9;  // other random weights
  experiment.run.start_from = (folder / "model").string();
  const auto trainer = tiny_trainer(experiment);
  trainer->take_first_weights();
  CountingLoader text(experiment.data), same_text(experiment.data);
  EXPECT_EQ(trainer->held_out_loss(text, 48), source->held_out_loss(same_text, 48));
}

TEST(Trainer, AccuracyIsThatOfAllTokensHoweverManyAreReadAtOnce) {
  Experiment experiment = tiny_experiment();
  experiment.training.tokens = 200 * 24;
  experiment.training.accuracy = 1;
  experiment.optimizer.learning_rate = 1e-2;
  const auto source = tiny_trainer(experiment);
  for (int i = 0; i < 150; ++i) source->step();
  const auto accuracy_with = [&](int64_t loss_chunk_tokens) {
    experiment.training.loss_chunk_tokens = loss_chunk_tokens;
    const auto trainer = tiny_trainer(experiment);
    const at::NoGradGuard no_grad;
    const auto weights = weights_of(*source);
    trainer->model().parameters([&](const std::string& name, models::Parameter& parameter) {
      parameter.value.copy_(weights.at(name));
    });
    const at::AutoGradMode grad(true);
    return trainer->step().accuracy;
  };
  const double whole = accuracy_with(1024);
  EXPECT_GT(whole, 0.3);
  EXPECT_EQ(accuracy_with(5), whole);
}

TEST(Trainer, CheckpointedActivationsGiveTheSameBits) {
  Experiment experiment = tiny_experiment();
  const auto stored = tiny_trainer(experiment);
  experiment.training.checkpoint_activations = true;
  const auto recomputed = tiny_trainer(experiment);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(stored->step().loss, recomputed->step().loss);
  expect_same_weights(*stored, *recomputed);
}

TEST(Trainer, SkipsAStepThatIsNotFinite) {
  const auto trainer = tiny_trainer(tiny_experiment());
  trainer->step();
  const at::Tensor good = break_model(*trainer);
  const auto before = weights_of(*trainer);
  const StepResult skipped = trainer->step();
  EXPECT_TRUE(skipped.skipped);
  EXPECT_FALSE(std::isfinite(skipped.loss));
  EXPECT_TRUE(trainer->last_step_skipped());
  EXPECT_FALSE(trainer->weights_finite());
  for (const auto& [name, value] : weights_of(*trainer)) {
    EXPECT_BITWISE_EQUAL(value, before.at(name)) << name;
  }
  repair_model(*trainer, good);
  const StepResult next = trainer->step();
  EXPECT_FALSE(next.skipped);
  EXPECT_EQ(next.step, 3);
  EXPECT_EQ(trainer->skipped_steps(), 1);
  EXPECT_FALSE(trainer->last_step_skipped());
  EXPECT_TRUE(trainer->weights_finite());
}

TEST(Trainer, StopsAfterTooManySkippedStepsInARow) {
  Experiment experiment = tiny_experiment();
  experiment.training.max_skipped_steps = 3;
  const auto trainer = tiny_trainer(experiment);
  break_model(*trainer);
  trainer->step();
  trainer->step();
  try {
    trainer->step();
    FAIL() << "the third skipped step must end the run";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("3 steps in a row"), std::string::npos) << e.what();
  }
}

// A short run never has as many in a row, and would end with the weights that it began with.
TEST(Trainer, ARunOfSkippedStepsAloneIsAnError) {
  Experiment experiment = tiny_experiment();
  experiment.training.tokens = int64_t{2} * 24;
  const auto trainer = tiny_trainer(experiment);
  break_model(*trainer);
  trainer->step();
  EXPECT_THROW(trainer->step(), Diverged);

  const auto other = tiny_trainer(experiment);
  other->step();
  break_model(*other);
  EXPECT_TRUE(other->step().skipped);
  EXPECT_TRUE(other->done());
}

TEST(Trainer, TimeBudgetEndsWithADecayedRate) {
  Experiment experiment = tiny_experiment();
  experiment.training.tokens = 0;
  experiment.training.minutes = 2.0 / 60;
  experiment.schedule.shape = ScheduleShape::kLinear;
  const auto trainer = tiny_trainer(experiment);
  StepResult last;
  double before_last = 0;
  while (!trainer->done()) {
    before_last = trainer->seconds();
    last = trainer->step();
  }
  EXPECT_GT(trainer->steps(), 3);
  EXPECT_LT(before_last, 2);
  EXPECT_LT(last.learning_rate, 0.35 * experiment.optimizer.learning_rate);
}

// 2 % of a minute are kept for the last checkpoint, and the time of a step for the last step.
TEST(Trainer, TimeBudgetLeavesTimeForTheLastStep) {
  Experiment experiment = tiny_experiment();
  experiment.training.tokens = 0;
  experiment.training.minutes = 1;
  const auto trainer = tiny_trainer(experiment);
  for (int i = 0; i < 3; ++i) trainer->step();
  const double of_step = trainer->counters().at("step_seconds");
  EXPECT_GT(of_step, 0);
  EXPECT_NEAR(trainer->progress().second_budget, 0.98 * 60 - of_step, 1e-9);
}

// Of all processes together that a run was trained in.
TEST(Trainer, TimeBudgetHoldsForTheWholeRun) {
  Experiment experiment = tiny_experiment();
  experiment.training.tokens = 0;
  experiment.training.minutes = 10;
  const auto trainer = tiny_trainer(experiment);
  trainer->step();
  nlohmann::json counters = trainer->counters();
  counters["seconds"] = 400;
  trainer->restore(counters, trainer->optimizer_state());
  EXPECT_GE(trainer->seconds(), 400);
  EXPECT_FALSE(trainer->done());
  counters["seconds"] = 600;
  trainer->restore(counters, trainer->optimizer_state());
  EXPECT_TRUE(trainer->done());
}

TEST(Trainer, ABudgetThatIsOverAtOnceIsOneStep) {
  Experiment experiment = tiny_experiment();
  experiment.training.tokens = 0;
  experiment.training.minutes = 1e-9;
  const auto trainer = tiny_trainer(experiment);
  EXPECT_FALSE(trainer->done());
  trainer->step();
  EXPECT_TRUE(trainer->done());
}

TEST(Trainer, HeldOutLossLeavesTheModelAlone) {
  const Experiment experiment = tiny_experiment();
  const auto trainer = tiny_trainer(experiment);
  trainer->step();
  const auto before = weights_of(*trainer);
  CountingLoader loader(experiment.data);
  const double loss = trainer->held_out_loss(loader, 48).value();
  EXPECT_NEAR(loss, std::log(17.0), 0.1);
  EXPECT_EQ(loader.state().at("count"), 4);  // 48 tokens are four rows of 12
  for (const auto& [name, value] : weights_of(*trainer)) {
    EXPECT_BITWISE_EQUAL(value, before.at(name)) << name;
  }
}

// What a run has saved is whole whether or not an old checkpoint can be removed.
TEST(SavedRun, AnOldCheckpointThatStaysIsNoError) {
  const test::TempDir folder;
  Experiment experiment = tiny_experiment();
  experiment.training.keep_checkpoints = 1;
  const auto trainer = tiny_trainer(experiment);
  EXPECT_TRUE(save_checkpoint(*trainer, folder.path(), {}).empty());
  const auto in_the_way = folder / "checkpoints/.tmp-removed-step-000000000000";
  std::filesystem::create_directories(in_the_way / "busy");
  trainer->step();
  const std::vector<std::string> kept = save_checkpoint(*trainer, folder.path(), {});
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_SAYS(kept[0], "step-000000000000: cannot be removed: ");
  EXPECT_EQ(checkpoint::list_checkpoints(folder.path()).size(), 2U);
  std::filesystem::remove_all(in_the_way);
  trainer->step();
  EXPECT_TRUE(save_checkpoint(*trainer, folder.path(), {}).empty());
  EXPECT_EQ(checkpoint::list_checkpoints(folder.path()).size(), 1U);
}

// Going on from it would never end well; those before it stay.
TEST(SavedRun, WeightsThatAreNotFiniteAreNotSaved) {
  const test::TempDir folder;
  Experiment experiment = tiny_experiment();
  experiment.training.keep_checkpoints = 1;
  const auto trainer = tiny_trainer(experiment);
  trainer->step();
  save_checkpoint(*trainer, folder.path(), {});
  trainer->step();
  break_model(*trainer);
  EXPECT_SAYS(test::error_of([&] { save_checkpoint(*trainer, folder.path(), {}); }),
              "a weight is not finite after step 2; the last checkpoint is intact");
  EXPECT_EQ(checkpoint::list_checkpoints(folder.path()),
            std::vector{checkpoint::checkpoint_folder(folder.path(), 1)});
}

TEST(Trainer, RestoreRejectsAForeignState) {
  const auto trainer = tiny_trainer(tiny_experiment());
  const auto error = [&](const nlohmann::json& counters) {
    return test::error_of([&] { trainer->restore(counters, trainer->optimizer_state()); });
  };
  EXPECT_EQ(error(nlohmann::json::object()), "trainer.json: loader = (absent); expected an object");
  auto counters = trainer->counters();
  counters["step"] = "ten";
  EXPECT_EQ(error(counters), "trainer.json: step = \"ten\"; expected an integer");
}

}  // namespace reynard::training
