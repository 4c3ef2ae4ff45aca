#include "reynard/training/trainer.h"

#include "reynard/ops/cross_entropy.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace reynard::training {

namespace {

// Index of the first token of every sequence in the flattened batch: document starts and row
// starts, since rows are separate sequences whatever the loader's mode.
at::Tensor sequence_offsets(const at::Tensor& starts) {
  const at::Tensor begins = starts.clone();
  begins.select(1, 0).fill_(true);
  return at::nonzero(begins.flatten()).squeeze(1);
}

// With a time budget the schedule ends a little before the clock does, for the last checkpoint.
double training_seconds(double minutes) {
  constexpr double kReservedShare = 0.02;
  constexpr double kMostReserved = 10;
  const double seconds = 60 * minutes;
  return seconds - std::min(kReservedShare * seconds, kMostReserved);
}

}  // namespace

Trainer::Trainer(const Experiment& experiment, std::unique_ptr<data::Loader> loader)
    : experiment_(experiment),
      loader_(std::move(loader)),
      model_(experiment.model,
             static_cast<uint64_t>(experiment.run.seed),
             chosen_device(experiment.training.device)),
      optimizer_(experiment.optimizer, model_) {
  model_.set_compute_dtype(compute_dtype(experiment.training.precision, model_.device()));
}

double Trainer::seconds() const {
  return seconds_before_ + std::chrono::duration<double>(Clock::now() - begin_).count();
}

Progress Trainer::progress() const {
  const TrainingConfig& config = experiment_.training;
  Progress progress{.tokens = tokens_, .token_budget = config.tokens, .seconds = seconds()};
  if (config.minutes > 0) {
    // The last step begins when the budget has one step left: there the rate is the final one.
    const double last_begin = training_seconds(config.minutes) - step_seconds_;
    progress.second_budget = std::max(last_begin, 1e-3);
  }
  return progress;
}

bool Trainer::done() const {
  return progress().fraction() >= 1;
}

at::Tensor Trainer::loss_sum(const data::Batch& batch, models::Observer* observer) {
  const models::ForwardOptions options{
      .checkpoint_activations = experiment_.training.checkpoint_activations, .observer = observer};
  const at::Tensor hidden =
      model_.hidden(batch.tokens.flatten(), sequence_offsets(batch.starts), {}, options);
  const models::Parameter& head = model_.head();
  return ops::cross_entropy(hidden,
                            head.value,
                            head.compute,
                            batch.targets.flatten(),
                            batch.loss_mask.flatten(),
                            experiment_.training.loss_chunk_tokens);
}

Trainer::Losses Trainer::accumulate_gradients(models::Observer* observer) {
  Losses losses;
  std::vector<data::Batch> batches;
  for (int64_t i = 0; i < experiment_.training.accumulation; ++i) {
    batches.push_back(loader_->next());
    losses.tokens += batches.back().loss_mask.sum(at::kDouble).item<double>();
    tokens_ += batches.back().tokens.numel();
  }
  const double scale = 1 / std::max(losses.tokens, 1.0);
  losses.sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device()));
  for (const data::Batch& batch : batches) {
    const at::Tensor sum = loss_sum(batch, &batch == batches.data() ? observer : nullptr);
    losses.sum += sum.detach();
    (sum * scale).backward();
  }
  return losses;
}

StepResult Trainer::step(models::Observer* observer) {
  const double begin = seconds();
  StepResult result{.step = steps_ + 1};
  result.learning_rate =
      learning_rate(experiment_.schedule, experiment_.optimizer.learning_rate, progress());
  const Losses losses = accumulate_gradients(observer);
  result.tokens = tokens_;
  result.loss_tokens = losses.tokens;
  const at::Tensor grad_norm = optimizer_.grad_norm();
  optimizer_.step(result.learning_rate, grad_norm, losses.sum);
  // Read together and last: on a GPU reading a number waits for all work before it.
  const at::Tensor read = at::stack({losses.sum, grad_norm}).cpu();
  result.loss = read[0].item<double>() / std::max(losses.tokens, 1.0);
  result.grad_norm = read[1].item<double>();
  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
  ++steps_;
  if (result.skipped) {
    optimizer_.take_back_step();
    count_skipped(result);
  } else {
    skipped_in_a_row_ = 0;
  }
  // The first step is the slowest (allocation, code paths met for the first time): forget it.
  const double taken = seconds() - begin;
  step_seconds_ = steps_ <= 2 ? taken : 0.8 * step_seconds_ + 0.2 * taken;
  return result;
}

void Trainer::count_skipped(const StepResult& result) {
  ++skipped_steps_;
  ++skipped_in_a_row_;
  if (skipped_in_a_row_ < experiment_.training.max_skipped_steps) return;
  throw Error(fmt::format(
      "training: {} is not finite in {} steps in a row (up to step {}); checkpoints before that "
      "are "
      "intact: lower optimizer.learning_rate = {} or lengthen the warm-up, then train again or go "
      "on with --resume",
      std::isfinite(result.loss) ? "the gradient" : "the loss",
      skipped_in_a_row_,
      result.step,
      experiment_.optimizer.learning_rate));
}

double Trainer::held_out_loss(data::Loader& loader, int64_t tokens) {
  const at::NoGradGuard no_grad;
  double sum = 0, counted = 0;
  for (int64_t seen = 0; seen < tokens;) {
    const data::Batch batch = loader.next();
    sum += loss_sum(batch, nullptr).item<double>();
    counted += batch.loss_mask.sum(at::kDouble).item<double>();
    seen += batch.tokens.numel();
  }
  return sum / std::max(counted, 1.0);
}

nlohmann::json Trainer::counters() const {
  return {{"step", steps_},
          {"tokens", tokens_},
          {"skipped_steps", skipped_steps_},
          {"skipped_in_a_row", skipped_in_a_row_},
          {"seconds", seconds()},
          {"step_seconds", step_seconds_},
          {"loader", loader_->state()}};
}

std::vector<checkpoint::NamedTensor> Trainer::optimizer_state() const {
  return optimizer_.state();
}

void Trainer::restore(const nlohmann::json& counters,
                      std::span<const checkpoint::NamedTensor> optimizer) {
  optimizer_.restore(optimizer);
  model_.refresh_compute();
  try {
    steps_ = counters.at("step");
    tokens_ = counters.at("tokens");
    skipped_steps_ = counters.at("skipped_steps");
    skipped_in_a_row_ = counters.at("skipped_in_a_row");
    seconds_before_ = counters.at("seconds");
    step_seconds_ = counters.at("step_seconds");
    loader_->restore(counters.at("loader"));
  } catch (const nlohmann::json::exception& e) {
    throw Error(
        fmt::format("checkpoint: trainer.json is not what this version writes: {}", e.what()));
  }
  begin_ = Clock::now();
}

bool Trainer::weights_finite() {
  const at::NoGradGuard no_grad;
  bool finite = true;
  model_.parameters([&](const std::string&, models::Parameter& parameter) {
    finite = finite && std::isfinite(parameter.value.abs().max().item<double>());
  });
  return finite;
}

}  // namespace reynard::training
