// Memories of earlier steps where a step has several micro-batches: each row goes on with its own
// text.

#include "reynard/training/run_checks.h"
#include "tests/training/text.h"
#include "tests/training/tiny.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace reynard::training {
namespace {

// Rows that remember 20 tokens (Memorizing Transformer).
Experiment memorizing(const std::string& text) {
  Experiment experiment = tiny_experiment();
  experiment.model.mixer = "memory_attention";
  experiment.model.memory.window = 12;
  experiment.model.memory.layers = {1};
  experiment.crossbatch.contexts = 1;
  experiment.crossbatch.memory = 20;
  experiment.data.path = text;
  experiment.data.mode = data::LoaderMode::kOrdered;
  experiment.schedule.warmup_fraction = 0;
  experiment.optimizer.learning_rate = 1e-3;
  return experiment;
}

Experiment transformer_xl(const std::string& text) {
  Experiment experiment = memorizing(text);
  experiment.model.mixer = "transformer_xl";
  experiment.model.memory = {};
  experiment.model.attention = {};
  experiment.model.attention.num_heads = 2;
  experiment.model.attention.window = 20;
  experiment.model.attention.rope = true;
  experiment.model.attention.forget_gate = models::ForgetGate::kNone;
  return experiment;
}

// Rows of a step as micro-batches of one each.
Experiment accumulated(Experiment experiment) {
  experiment.training.accumulation = experiment.data.batch_size;
  experiment.data.batch_size = 1;
  return experiment;
}

std::unique_ptr<Trainer> text_trainer(const Experiment& experiment) {
  return std::make_unique<Trainer>(experiment, training_loader(experiment));
}

// By "ROW LAYER KIND", rows numbered through the micro-batches of a step.
std::map<std::string, at::Tensor> memories_of(const Trainer& trainer) {
  std::map<std::string, at::Tensor> memories;
  for (const checkpoint::NamedTensor& tensor : trainer.optimizer_state()) {
    const auto name = models::MemoryName::parse(tensor.name);
    if (!name) continue;
    const int64_t row = name->micro_batch * trainer.experiment().data.batch_size + name->row;
    memories.emplace(fmt::format("{} {} {}", row, name->layer, name->kind), tensor.tensor);
  }
  return memories;
}

}  // namespace

TEST(AccumulatedMemory, EqualsThatOfOneLargeBatch) {
  const test::TempDir folder;
  const std::string text =
      write_text(folder / "a.tokens", random_documents({40, 25, 33, 60, 18, 47}, 1));
  for (const Experiment& large : {memorizing(text), transformer_xl(text)}) {
    const auto whole = text_trainer(large), parts = text_trainer(accumulated(large));
    for (int step = 0; step < 10; ++step) {
      const StepResult a = whole->step(), b = parts->step();
      EXPECT_EQ(a.tokens, b.tokens);
      // Order of f32 additions differs; Adam may magnify that where a gradient is near zero.
      EXPECT_NEAR(a.loss, b.loss, 1e-4) << large.model.mixer << ", step " << step;
      const auto expected = memories_of(*whole), found = memories_of(*parts);
      ASSERT_EQ(found.size(), expected.size()) << large.model.mixer << ", step " << step;
      for (const auto& [name, tensor] : expected) {
        ASSERT_TRUE(found.contains(name)) << name;
        ASSERT_EQ(found.at(name).sizes(), tensor.sizes()) << name;
        EXPECT_TRUE(at::allclose(found.at(name), tensor, 1e-2, 1e-3)) << name;
      }
    }
  }
}

// Nothing of a document is left where its row holds another one.
TEST(AccumulatedMemory, AnotherDocumentChangesNoStepWithoutIt) {
  const test::TempDir folder;
  std::vector<Document> documents = random_documents(std::vector<int64_t>(6, 40), 2);
  const std::string text = write_text(folder / "a.tokens", documents);
  documents[0] = random_documents({40}, 3)[0];
  const std::string other = write_text(folder / "b.tokens", documents);
  for (Experiment experiment : {memorizing(text), transformer_xl(text)}) {
    experiment = accumulated(experiment);
    experiment.optimizer.learning_rate = 0;
    Experiment changed = experiment;
    changed.data.path = other;
    const auto a = text_trainer(experiment), b = text_trainer(changed);
    const auto texts = training_loader(experiment), other_texts = training_loader(changed);
    int num_with = 0, num_behind = 0;  // steps with the document, and without it after those
    for (int step = 0; step < 12; ++step) {
      bool same = true;
      for (int64_t i = 0; i < experiment.training.accumulation; ++i) {
        same = at::equal(texts->next().tokens, other_texts->next().tokens) && same;
      }
      const double loss = a->step().loss, changed_loss = b->step().loss;
      EXPECT_EQ(loss == changed_loss, same) << experiment.model.mixer << ", step " << step;
      num_with += same ? 0 : 1;
      num_behind += same && num_with > 0 ? 1 : 0;
    }
    EXPECT_GE(num_with, 2);
    EXPECT_GE(num_behind, 2);
  }
}

}  // namespace reynard::training
