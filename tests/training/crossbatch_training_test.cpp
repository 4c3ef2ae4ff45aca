// Training of a memory by the trainer: how many documents a step sees, and that it can go on.

#include "reynard/config/config.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/check.h"
#include "tests/support/compare.h"
#include "tests/support/errors.h"
#include "tests/training/tiny.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

namespace reynard::training {
namespace {

Experiment crossbatch_experiment() {
  Experiment experiment = tiny_experiment();
  experiment.model.mixer = "memory_attention";
  experiment.model.memory.window = 6;
  experiment.model.memory.layers = {1};
  experiment.crossbatch.contexts = 2;
  experiment.crossbatch.documents = {2};
  experiment.data.mode = data::LoaderMode::kOrdered;
  experiment.data.batch_size = 4;
  experiment.training.tokens = 20 * 48;
  return experiment;
}

TEST(CrossbatchTraining, DocumentsFollowTheirOrder) {
  Experiment experiment = crossbatch_experiment();
  experiment.crossbatch.documents = {1, 2, 4};
  experiment.crossbatch.steps = {3, 10};
  for (const auto& [step, documents] : {std::pair{0, 1},
                                        std::pair{2, 1},
                                        std::pair{3, 2},
                                        std::pair{9, 2},
                                        std::pair{10, 4},
                                        std::pair{1000, 4}}) {
    EXPECT_EQ(crossbatch_documents(experiment, step), documents) << step;
  }
  experiment.crossbatch.order = DocumentsOrder::kDrawn;
  experiment.crossbatch.steps = {};
  std::multiset<int64_t> drawn;
  for (int64_t step = 0; step < 300; ++step) {
    drawn.insert(crossbatch_documents(experiment, step));
    EXPECT_EQ(crossbatch_documents(experiment, step), crossbatch_documents(experiment, step));
  }
  for (const int64_t d : {1, 2, 4}) EXPECT_NEAR(drawn.count(d), 100, 40) << d;
}

TEST(CrossbatchTraining, RowsDrawWhatTheySeeOfTheirMemory) {
  Experiment experiment = crossbatch_experiment();
  experiment.crossbatch.memory = 20;
  EXPECT_EQ(crossbatch_memory_seen(experiment, 3, 1), 20);
  experiment.crossbatch.memory_seen = {0, 6, 20};
  std::multiset<int64_t> of_steps, of_rows;
  for (int64_t i = 0; i < 300; ++i) {
    of_steps.insert(crossbatch_memory_seen(experiment, i, 2));
    of_rows.insert(crossbatch_memory_seen(experiment, 2, i));
  }
  for (const int64_t seen : {0, 6, 20}) {
    EXPECT_NEAR(of_steps.count(seen), 100, 40) << seen;
    EXPECT_NEAR(of_rows.count(seen), 100, 40) << seen;
  }
}

// What a row of two steps holds is trained on twice and counted once.
TEST(CrossbatchTraining, TokensThatComeAgainCountOnce) {
  Experiment experiment = crossbatch_experiment();
  experiment.data.overlap = 6;
  const auto trainer = tiny_trainer(experiment);
  EXPECT_EQ(trainer->step().tokens, 4 * 6);
  EXPECT_EQ(trainer->step().tokens, 2 * 4 * 6);
}

// A threshold that every step passes: the next number in each step, also after a restart.
TEST(CrossbatchTraining, DocumentsGoByAccuracy) {
  Experiment experiment = crossbatch_experiment();
  experiment.crossbatch.documents = {1, 2, 4};
  experiment.crossbatch.order = DocumentsOrder::kByAccuracy;
  experiment.crossbatch.accuracy = 0;
  const auto trainer = tiny_trainer(experiment);
  const StepResult first = trainer->step();
  EXPECT_EQ(first.documents, 1);
  EXPECT_GE(first.accuracy, 0);
  EXPECT_LE(first.accuracy, 1);
  const auto resumed = tiny_trainer(experiment);
  resumed->restore(trainer->counters(), trainer->optimizer_state());
  EXPECT_EQ(resumed->step().documents, 2);
  for (const int64_t documents : {2, 4, 4}) EXPECT_EQ(trainer->step().documents, documents);
  experiment.crossbatch.accuracy = 1;  // not reached by random weights
  const auto waiting = tiny_trainer(experiment);
  for (int step = 0; step < 3; ++step) EXPECT_EQ(waiting->step().documents, 1);
}

// With the last number of documents only; a resumed run knows that it has ended, and goes on when
// more is asked.
TEST(CrossbatchTraining, EndsByAccuracy) {
  Experiment experiment = crossbatch_experiment();
  experiment.crossbatch.documents = {1, 2};
  experiment.crossbatch.order = DocumentsOrder::kByAccuracy;
  experiment.crossbatch.accuracy = 0;
  experiment.training.accuracy = 1e-9;
  experiment.optimizer.learning_rate = 0.02;
  const auto trainer = tiny_trainer(experiment);
  const StepResult first = trainer->step();
  EXPECT_EQ(first.documents, 1);
  EXPECT_FALSE(trainer->done());
  StepResult last;
  while (!trainer->done()) last = trainer->step();
  EXPECT_EQ(last.documents, 2);
  EXPECT_GT(last.accuracy, 0);
  EXPECT_LT(trainer->tokens(), experiment.training.tokens);
  const auto resumed = tiny_trainer(experiment);
  resumed->restore(trainer->counters(), trainer->optimizer_state());
  EXPECT_TRUE(resumed->done());
  experiment.training.accuracy = 1;
  const auto longer = tiny_trainer(experiment);
  longer->restore(trainer->counters(), trainer->optimizer_state());
  EXPECT_FALSE(longer->done());
}

TEST(CrossbatchTraining, LearnsAndDependsOnOtherDocuments) {
  double first_loss = 0;
  std::set<double> losses;
  for (const int64_t documents : {1, 2, 4}) {
    Experiment experiment = crossbatch_experiment();
    experiment.crossbatch.documents = {documents};
    experiment.optimizer.learning_rate = 1e-2;
    experiment.training.tokens = 150 * 48;
    const auto trainer = tiny_trainer(experiment);
    first_loss = trainer->step().loss;
    losses.insert(first_loss);
    StepResult last;
    while (!trainer->done()) last = trainer->step();
    EXPECT_LT(last.loss, 0.7 * first_loss) << documents;
  }
  EXPECT_EQ(losses.size(), 3) << "other documents made no difference";
}

TEST(CrossbatchTraining, LossOfTheLastContextCountsItsTokensOnly) {
  Experiment experiment = crossbatch_experiment();
  const double all = tiny_trainer(experiment)->step().loss_tokens;
  experiment.crossbatch.loss = CrossbatchContexts::kLast;
  const double last = tiny_trainer(experiment)->step().loss_tokens;
  // Two of four rows leave out their second token, which is in the first context.
  EXPECT_EQ(all, 4 * 12 - 2);
  EXPECT_EQ(last, 4 * 6);
}

TEST(CrossbatchTraining, PacksLearnToo) {
  Experiment experiment = crossbatch_experiment();
  experiment.crossbatch.rule = models::CrossbatchRule::kPacks;
  experiment.optimizer.learning_rate = 1e-2;
  experiment.training.tokens = 100 * 48;
  const auto trainer = tiny_trainer(experiment);
  const double first = trainer->step().loss;
  StepResult last;
  while (!trainer->done()) last = trainer->step();
  EXPECT_LT(last.loss, 0.8 * first);
}

// A memory of earlier steps is part of what resuming needs; recomputed activations see the same.
TEST(CrossbatchTraining, MemoryOfEarlierStepsContinuesBitForBit) {
  Experiment experiment = crossbatch_experiment();
  experiment.crossbatch.contexts = 1;
  experiment.crossbatch.documents = {1};
  experiment.crossbatch.memory = 20;
  experiment.crossbatch.memory_from_step = 2;
  experiment.crossbatch.memory_seen = {6, 20};
  experiment.crossbatch.memory_across_documents = true;  // the tests' rows all begin one
  experiment.model.memory.merge = models::MemoryMerge::kGated;
  experiment.model.memory.window = 12;
  experiment.training.accumulation = 2;
  const auto straight = tiny_trainer(experiment);
  for (int i = 0; i < 8; ++i) straight->step();

  const auto before = tiny_trainer(experiment);
  for (int i = 0; i < 5; ++i) before->step();
  const auto weights = weights_of(*before);
  experiment.training.checkpoint_activations = true;
  const auto after = tiny_trainer(experiment);
  {
    const at::NoGradGuard no_grad;
    after->model().parameters([&](const std::string& name, models::Parameter& parameter) {
      parameter.value.copy_(weights.at(name));
    });
  }
  after->restore(before->counters(), before->optimizer_state());
  for (int i = 0; i < 3; ++i) after->step();
  const auto expected = weights_of(*straight);
  for (const auto& [name, value] : weights_of(*after)) {
    EXPECT_BITWISE_EQUAL(value, expected.at(name)) << name;
  }
}

TEST(CrossbatchTraining, MemoriesWithoutAPlaceAreErrors) {
  Experiment experiment = crossbatch_experiment();
  experiment.crossbatch.contexts = 1;
  experiment.crossbatch.documents = {1};
  experiment.crossbatch.memory = 20;
  experiment.crossbatch.memory_across_documents = true;  // the tests' rows all begin one
  experiment.model.memory.window = 12;
  experiment.training.accumulation = 2;
  const auto before = tiny_trainer(experiment);
  before->step();
  const auto error_with = [&](const std::string& name) {
    std::vector<checkpoint::NamedTensor> state = before->optimizer_state();
    for (checkpoint::NamedTensor& tensor : state) {
      if (tensor.name == "1.memory.1.0.k") tensor.name = name;
    }
    const auto after = tiny_trainer(experiment);
    return test::error_of([&] { after->restore(before->counters(), state); });
  };
  EXPECT_EQ(error_with("1.memory.1.0.k"), "no error");
  for (const char* name : {"2.memory.1.0.k", "7.memory.1.0.k", "1.memory.0.0.k"}) {
    EXPECT_SAYS(error_with(name), fmt::format("\"{}\" has no place in this run", name));
  }
  EXPECT_SAYS(error_with("1.memory.1.4.k"), "expected 3, and a row below the batch's 4");
  EXPECT_SAYS(error_with("1.memory.1.0.v"), "do not belong together");
  EXPECT_SAYS(error_with("1.memory.1.0.kXYZ"), "optimizer state has");
}

TEST(CrossbatchTraining, AStepThatIsNotFiniteIsNotRemembered) {
  for (const int64_t top_k : {0, 3}) {
    Experiment experiment = crossbatch_experiment();
    experiment.crossbatch.contexts = 1;
    experiment.crossbatch.documents = {1};
    experiment.crossbatch.memory = 20;
    experiment.crossbatch.memory_across_documents = true;  // the tests' rows all begin one
    experiment.model.memory.window = 12;
    experiment.model.memory.top_k = top_k;
    const auto trainer = tiny_trainer(experiment);
    for (int i = 0; i < 2; ++i) trainer->step();
    const at::NoGradGuard no_grad;
    at::Tensor norm;
    trainer->model().parameters([&](const std::string& name, models::Parameter& parameter) {
      if (name == "model.layers.1.attn_norm.weight") norm = parameter.value;
    });
    ASSERT_TRUE(norm.defined());
    const at::Tensor good = norm.clone();
    norm.fill_(std::numeric_limits<float>::infinity());  // of what keys and queries are made of
    {
      const at::AutoGradMode gradients(true);
      EXPECT_TRUE(trainer->step().skipped) << top_k;
    }
    norm.copy_(good);
    const at::AutoGradMode gradients(true);
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(trainer->step().skipped) << top_k;
  }
}

// The memory of earlier steps, as a recurrence through all layers.
TEST(CrossbatchTraining, TransformerXLLearnsAndContinuesBitForBit) {
  Experiment experiment = crossbatch_experiment();
  experiment.model.mixer = "transformer_xl";
  experiment.model.memory = {};
  models::AttentionMixerConfig& attention = experiment.model.attention;
  attention = models::AttentionMixerConfig();
  attention.num_heads = 2;
  attention.window = 12;
  attention.rope = true;
  attention.forget_gate = models::ForgetGate::kNone;
  experiment.crossbatch.contexts = 1;
  experiment.crossbatch.documents = {1};
  experiment.crossbatch.memory = 12;
  experiment.crossbatch.memory_across_documents = true;  // the tests' rows all begin one
  experiment.optimizer.learning_rate = 1e-2;
  experiment.training.tokens = 100 * 48;
  config::Problems problems;
  experiment.check(problems, "");
  ASSERT_TRUE(problems.empty()) << problems.lines()[0];
  const auto straight = tiny_trainer(experiment), before = tiny_trainer(experiment);
  const double first = straight->step().loss;
  before->step();
  for (int i = 0; i < 4; ++i) straight->step(), before->step();
  const auto weights = weights_of(*before);
  const auto after = tiny_trainer(experiment);
  {
    const at::NoGradGuard no_grad;
    after->model().parameters([&](const std::string& name, models::Parameter& parameter) {
      parameter.value.copy_(weights.at(name));
    });
  }
  after->restore(before->counters(), before->optimizer_state());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(straight->step().loss, after->step().loss);
  }
  StepResult last;
  while (!straight->done()) last = straight->step();
  EXPECT_LT(last.loss, 0.8 * first);
}

// A Llama that gets a memory: its weights, and contexts that see each other from the first step on.
TEST(CrossbatchTraining, StartsFromWeightsWithoutAMemory) {
  Experiment llama = tiny_experiment();
  llama.model.attention = models::AttentionMixerConfig();
  llama.model.attention.num_heads = 2;
  llama.model.attention.rope = true;
  llama.model.attention.forget_gate = models::ForgetGate::kNone;
  const test::TempDir folder;
  const auto source = tiny_trainer(llama);
  for (int i = 0; i < 5; ++i) source->step();
  models::save_model(source->model(), folder / "llama", "llama");

  Experiment experiment = crossbatch_experiment();
  experiment.model.attention = llama.model.attention;
  experiment.run.seed = 9;  // other random weights
  experiment.run.start_from = (folder / "llama").string();
  for (const auto merge : {models::MemoryMerge::kJoint, models::MemoryMerge::kGated}) {
    experiment.model.memory.merge = merge;
    const auto trainer = tiny_trainer(experiment);
    trainer->take_first_weights();
    const auto expected = weights_of(*source);
    for (const auto& [name, value] : weights_of(*trainer)) {
      if (name.ends_with("memory_gate")) continue;
      EXPECT_BITWISE_EQUAL(value, expected.at(name)) << name;
    }
    trainer->step();
    models::save_model(trainer->model(), folder / "out");
    EXPECT_TRUE(models::load_config(folder / "out").has_memory());
  }
  experiment.model.hidden_size = 32;
  EXPECT_THROW(tiny_trainer(experiment)->take_first_weights(), Error);
}

TEST(CrossbatchTraining, ImpossibleExperimentsAreNamed) {
  const auto refused = [](const std::string& key, auto change) {
    Experiment experiment = crossbatch_experiment();
    change(experiment);
    config::Problems problems;
    experiment.check(problems, "");
    ASSERT_FALSE(problems.empty()) << key;
    EXPECT_NE(problems.lines()[0].find(key), std::string::npos) << problems.lines()[0];
  };
  config::Problems none;
  crossbatch_experiment().check(none, "");
  EXPECT_TRUE(none.empty());
  refused("crossbatch.contexts", [](Experiment& e) { e.model.mixer = "attention"; });
  refused("crossbatch.contexts", [](Experiment& e) {
    e.model.mixer = "transformer_xl";
    e.crossbatch.contexts = 1;
  });
  refused("crossbatch.contexts: must be 1, with crossbatch.memory above 0", [](Experiment& e) {
    e.model.mixer = "transformer_xl";
    e.crossbatch = {};
  });
  refused("model.attention", [](Experiment& e) {
    e.model.mixer = "transformer_xl";
    e.model.memory.layers = {};
    e.crossbatch.contexts = 1;
    e.crossbatch.memory = 6;
    e.crossbatch.documents = {1};
  });
  refused("crossbatch.contexts", [](Experiment& e) { e.crossbatch.contexts = 5; });
  refused("crossbatch.contexts", [](Experiment& e) { e.model.memory.window = 4; });
  refused("crossbatch.documents", [](Experiment& e) { e.crossbatch.documents = {5}; });
  refused("crossbatch.documents", [](Experiment& e) { e.crossbatch.documents = {}; });
  refused("crossbatch.steps", [](Experiment& e) { e.crossbatch.documents = {1, 2}; });
  refused("crossbatch.memory", [](Experiment& e) {
    e.crossbatch.memory = 8;
    e.data.mode = data::LoaderMode::kSlices;
  });
  refused("crossbatch.memory_seen", [](Experiment& e) { e.crossbatch.memory_seen = {0, 6}; });
  refused("crossbatch.memory_seen: must be at most crossbatch.memory = 6", [](Experiment& e) {
    e.crossbatch.memory = 6;
    e.crossbatch.memory_seen = {6, 7};
  });
  refused("crossbatch.memory_from_step: needs crossbatch.memory above 0",
          [](Experiment& e) { e.crossbatch.memory_from_step = 3; });
  refused("crossbatch.memory_from_step", [](Experiment& e) {
    e.crossbatch = {};
    e.crossbatch.memory_from_step = 3;
  });
  refused("crossbatch.memory_across_documents",
          [](Experiment& e) { e.crossbatch.memory_across_documents = true; });
  refused("crossbatch.memory_readers",
          [](Experiment& e) { e.crossbatch.memory_readers = CrossbatchContexts::kLast; });
  refused("crossbatch.accuracy: needs crossbatch.order = \"by_accuracy\"",
          [](Experiment& e) { e.crossbatch.accuracy = 0.5; });
  refused("data.overlap", [](Experiment& e) { e.data.overlap = 5; });
  refused("data.mode", [](Experiment& e) { e.data.mode = data::LoaderMode::kPacked; });
}

}  // namespace
}  // namespace reynard::training
