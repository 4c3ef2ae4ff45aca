#pragma once
// One run of training, step by step: micro-batches through the decoder, the loss normalised over
// the tokens of the whole step, clipping, AdamW. Files, progress and signals are run.h's.

#include "reynard/checkpoint/safetensors.h"
#include "reynard/data/loader.h"
#include "reynard/models/batch_memory.h"
#include "reynard/models/decoder.h"
#include "reynard/tensor/error.h"
#include "reynard/training/experiment.h"
#include "reynard/training/optimizer.h"
#include "reynard/training/schedule.h"

#include <nlohmann/json_fwd.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace reynard::training {

struct StepResult {
  int64_t step = 0;        // this step's number, from 1
  int64_t tokens = 0;      // input tokens seen, this step included
  double loss = 0;         // nats per token of this step; not finite when it was skipped for that
  double loss_tokens = 0;  // tokens that count in the loss
  double grad_norm = 0;    // before clipping
  double learning_rate = 0;
  int64_t documents = 0;  // crossbatch: whose keys a context saw; 0: off
  double accuracy = -1;   // share of the tokens predicted, where something goes by it; -1: unknown
  bool skipped = false;   // loss or gradient was not finite: weights and moments are untouched
};

// Training that goes on would only give numbers that are not finite.
struct Diverged : Error {
  using Error::Error;
};

class Trainer {
 public:
  // loader: training_loader(experiment), or a test's own; its batches lie on the CPU. The weights
  // are those of experiment.run.seed, the same on every device.
  Trainer(const Experiment& experiment, std::unique_ptr<data::Loader> loader);
  // Before the first step of a run that begins: those of run.start_from, where there is one. Throws
  // Error where that model is another one.
  void take_first_weights();

  // One optimizer step over `accumulation` micro-batches; the observer sees the first of them.
  // Throws Diverged after max_skipped_steps skipped steps in a row, and at the end of a run of
  // skipped steps alone.
  StepResult step(models::Observer* observer = nullptr);
  // Whether the budget of tokens or time is used up (a step that would not end in time counts) or
  // training.accuracy was reached.
  bool done() const;
  Progress progress() const;

  // Loss in nats per token over the first rows of held-out batches that hold `tokens` tokens,
  // without gradients. Nothing where none of them counts, and once `stop` is set.
  std::optional<double> held_out_loss(data::Loader& loader,
                                      int64_t tokens,
                                      const std::atomic<bool>* stop = nullptr);

  // What resuming needs besides the weights: counters and loader state, and the moments.
  nlohmann::json counters() const;
  std::vector<checkpoint::NamedTensor> optimizer_state() const;
  // The inverse; weights must have been put into model() before. Throws Error when the state does
  // not fit this model.
  void restore(const nlohmann::json& counters, std::span<const checkpoint::NamedTensor> optimizer);
  // Whether every weight is finite.
  bool weights_finite();

  models::Decoder& model() { return model_; }
  at::Device device() const { return model_.device(); }
  const Experiment& experiment() const { return experiment_; }
  int64_t steps() const { return steps_; }
  int64_t tokens() const { return tokens_; }
  int64_t skipped_steps() const { return skipped_steps_; }
  bool last_step_skipped() const { return skipped_in_a_row_ > 0; }
  double seconds() const;  // wall time of the run, earlier processes included

 private:
  using Clock = std::chrono::steady_clock;

  struct Losses {
    at::Tensor sum;     // nats over all tokens that count: an f64 scalar on the model's device
    double tokens = 0;  // tokens that count
    at::Tensor hits;    // those predicted: an f64 scalar; zero unless something goes by accuracy
  };
  // Forward and backward of the whole step; gradients are accumulated.
  Losses accumulate_gradients(models::Observer* observer);
  struct BatchLoss {
    at::Tensor sum;  // nats over the tokens that count: a scalar that backward() can start from
    // Those predicted: an f64 scalar; undefined unless something goes by accuracy and gradients are
    // recorded.
    at::Tensor hits;
  };
  // rule, documents: whose keys a context sees (crossbatch); memory: of that batch's rows, or none.
  BatchLoss batch_loss(const data::Batch& batch,
                       models::Observer* observer,
                       models::CrossbatchRule rule,
                       int64_t documents,
                       models::BatchMemory* memory);
  // Tokens that count and whose target has the largest logit: an f64 scalar.
  at::Tensor count_hits(const at::Tensor& hidden, const data::Batch& batch) const;
  bool by_accuracy() const {
    return experiment_.crossbatch.contexts > 0 &&
           experiment_.crossbatch.order == DocumentsOrder::kByAccuracy;
  }
  bool counts_hits() const { return by_accuracy() || experiment_.training.accuracy > 0; }
  // The next of crossbatch.documents is due, or the run ends.
  void go_by(double accuracy);
  // Whose keys the next step's contexts see.
  int64_t documents() const;
  // The loader's next batch with the loss mask of the crossbatch.
  data::Batch next_batch(data::Loader& loader) const;
  void restore_memories(std::span<const checkpoint::NamedTensor> saved);
  // The memory of the i-th micro-batch of a step, where there is one yet.
  models::BatchMemory* memory(int64_t i);
  models::BatchMemory empty_memory() const;
  // What each row of that micro-batch sees of it in the next step.
  std::vector<int64_t> memory_seen(int64_t i) const;
  void count_skipped(const StepResult& result);

  Experiment experiment_;
  std::unique_ptr<data::Loader> loader_;
  models::Decoder model_;
  Optimizer optimizer_;
  std::vector<models::BatchMemory> memories_;  // one per micro-batch of a step, or none
  int64_t stage_ = 0;     // place in crossbatch.documents, where they go by accuracy
  double accuracy_ = -1;  // of the newest step, if with the last of crossbatch.documents
  int64_t steps_ = 0, tokens_ = 0, skipped_steps_ = 0, skipped_in_a_row_ = 0;
  double seconds_before_ = 0;  // of earlier processes
  Clock::time_point begin_ = Clock::now();
  double step_seconds_ = 0;  // of a recent step, for the time budget
};

}  // namespace reynard::training
