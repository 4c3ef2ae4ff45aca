// Training on answers: only they move weights, wherever they stand in their rows.

#include "reynard/data/token_file_writer.h"
#include "tests/support/compare.h"
#include "tests/training/tiny.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

namespace reynard::training {
namespace {

// Dialogues of different lengths; vocabulary 17, BOS 15, EOS 16.
std::string write_dialogues(const test::TempDir& folder) {
  std::string path = folder / "dialogues.tokens";
  data::TokenFileWriter writer(path, {.vocab_size = 17, .bos = 15, .eos = 16});
  for (int32_t d = 0; d < 7; ++d) {
    writer.begin_document();
    for (int32_t turn = 0; turn <= d % 2; ++turn) {
      std::vector<int32_t> question(2 + d % 3), answer(1 + d % 4);
      for (size_t i = 0; i < question.size(); ++i) question[i] = (3 * d + 5 * i + turn) % 15;
      for (size_t i = 0; i < answer.size(); ++i) answer[i] = (d + 2 * i + 7) % 15;
      writer.append(question);
      writer.begin_answer();
      writer.append(answer);
      writer.end_answer();
    }
    writer.end_document(1);
  }
  writer.finish();
  writer.commit();
  return path;
}

Experiment instruction_experiment(const std::string& path) {
  Experiment experiment = tiny_experiment();
  experiment.model.mixer = "memory_attention";
  experiment.model.memory.window = 12;
  experiment.model.memory.layers = {1};
  experiment.model.attention.key_shift = false;
  experiment.model.attention.value_shift = false;
  experiment.crossbatch.contexts = 2;
  experiment.data.path = path;
  experiment.data.mode = data::LoaderMode::kPadded;
  experiment.data.batch_size = 4;
  experiment.data.length = 24;
  experiment.training.tokens = 20 * 96;
  return experiment;
}

using Change = std::function<void(data::Batch&)>;

// Another loader's batches, changed.
class ChangedLoader : public data::Loader {
 public:
  ChangedLoader(const data::LoaderConfig& config, Change change)
      : loader_(data::make_loader(config)), change_(std::move(change)) {}
  data::Batch next() override {
    data::Batch batch = loader_->next();
    change_(batch);
    return batch;
  }
  nlohmann::json state() const override { return loader_->state(); }
  void restore(const nlohmann::json& state) override { loader_->restore(state); }
  const data::TokenFile& file() const override { return loader_->file(); }
  int64_t rows_of_one_pass() const override { return loader_->rows_of_one_pass(); }

 private:
  std::unique_ptr<data::Loader> loader_;
  Change change_;
};

// Weights after some steps.
std::map<std::string, at::Tensor> trained(
    const Experiment& experiment, const Change& change = [](data::Batch&) {}) {
  Trainer trainer(experiment, std::make_unique<ChangedLoader>(experiment.data, change));
  for (int step = 0; step < 3; ++step) EXPECT_GT(trainer.step().loss_tokens, 0);
  return weights_of(trainer);
}

void expect_same_bits(const std::map<std::string, at::Tensor>& found,
                      const std::map<std::string, at::Tensor>& expected) {
  for (const auto& [name, weight] : expected) {
    SCOPED_TRACE(name);
    EXPECT_BITWISE_EQUAL(found.at(name), weight);
  }
}

// What a model would have to say in a question has no gradient at all.
TEST(Instructions, TargetsOutsideAnswersDoNotCount) {
  const test::TempDir folder;
  const Experiment experiment = instruction_experiment(write_dialogues(folder));
  expect_same_bits(trained(experiment,
                           [](data::Batch& batch) {
                             batch.targets = at::where(
                                 batch.loss_mask.eq(0), (batch.targets + 5) % 17, batch.targets);
                           }),
                   trained(experiment));
}

// Nor is padding seen by anything that counts, though it lies in a context that the memory shows.
// Up to rounding: keys that are masked lie in tiles with others.
TEST(Instructions, PaddingIsNotSeen) {
  const test::TempDir folder;
  Experiment experiment = instruction_experiment(write_dialogues(folder));
  experiment.data.batch_size = 16;
  int64_t shown = 0;  // documents that count in the second context, behind padding
  const auto first_step = [&](int64_t token, bool hidden) {
    const auto change = [&](data::Batch& batch) {
      for (int64_t b = 0; b < batch.tokens.size(0); ++b) {
        const int64_t p = batch.padding[b].item<int64_t>();
        shown += p > 0 && p < 24 && batch.loss_mask[b].narrow(0, 12, 12).sum().item<float>() > 0;
        batch.tokens[b].narrow(0, 0, p).fill_(token);
      }
      if (!hidden) batch.padding = at::Tensor();
    };
    Trainer trainer(experiment, std::make_unique<ChangedLoader>(experiment.data, change));
    return trainer.step();
  };
  const StepResult one = first_step(4, true), other = first_step(9, true);
  EXPECT_GT(shown, 0);
  EXPECT_NEAR(one.loss, other.loss, 1e-6);
  EXPECT_NEAR(one.grad_norm, other.grad_norm, 1e-5 * one.grad_norm);
  // Without saying where padding ends, the memory shows it.
  const StepResult seen = first_step(4, false), seen_other = first_step(9, false);
  EXPECT_GT(std::abs(seen.loss - seen_other.loss), 1e-5);
  EXPECT_GT(std::abs(seen.grad_norm - seen_other.grad_norm), 1e-4 * seen.grad_norm);
}

// A step's loss is the mean over its answers' tokens, however it is cut into micro-batches.
TEST(Instructions, MeanOverAllAnswersOfAStep) {
  const test::TempDir folder;
  Experiment whole = instruction_experiment(write_dialogues(folder));
  Experiment cut = whole;
  cut.data.batch_size = 1;
  cut.training.accumulation = 4;
  Trainer a(whole, data::make_loader(whole.data)), b(cut, data::make_loader(cut.data));
  for (int step = 0; step < 3; ++step) {
    const StepResult one = a.step(), other = b.step();
    EXPECT_EQ(one.loss_tokens, other.loss_tokens);
    EXPECT_NEAR(one.loss, other.loss, 1e-5);
    EXPECT_NEAR(one.grad_norm, other.grad_norm, 1e-4 * one.grad_norm);
  }
}

TEST(Instructions, AResumedRunHasTheSameBits) {
  const test::TempDir folder;
  const Experiment experiment = instruction_experiment(write_dialogues(folder));
  Trainer trainer(experiment, data::make_loader(experiment.data));
  for (int step = 0; step < 2; ++step) trainer.step();
  Trainer resumed(experiment, data::make_loader(experiment.data));
  const auto weights = weights_of(trainer);
  {
    const at::NoGradGuard no_grad;
    resumed.model().parameters([&](const std::string& name, models::Parameter& parameter) {
      parameter.value.copy_(weights.at(name));
    });
  }
  resumed.restore(trainer.counters(), trainer.optimizer_state());
  for (int step = 0; step < 2; ++step) EXPECT_EQ(trainer.step().loss, resumed.step().loss);
  expect_same_bits(weights_of(resumed), weights_of(trainer));
}

TEST(Instructions, PaddingIsForOneDocumentsRows) {
  Experiment experiment = instruction_experiment("some.tokens");
  const auto problems = [&] {
    config::Problems found;
    experiment.check(found, "");
    return found;
  };
  EXPECT_NO_THROW(problems().throw_if_any());
  experiment.crossbatch.documents = {2};
  EXPECT_THROW(problems().throw_if_any(), Error);
}

}  // namespace
}  // namespace reynard::training
