#include "reynard/training/trainer.h"

#include "reynard/models/families/json_fields.h"
#include "reynard/models/pretrained.h"
#include "reynard/ops/cross_entropy.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/argmax.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace reynard::training {

namespace {

// Index of the first token of every sequence in the flattened batch: document starts,
// row starts, since rows are separate sequences whatever the loader's mode, and the starts of the
// `contexts` equal parts of a row.
at::Tensor sequence_offsets(const at::Tensor& starts, int64_t contexts) {
  const at::Tensor begins = starts.clone();
  const int64_t length = starts.size(1) / contexts;
  for (int64_t c = 0; c < contexts; ++c) begins.select(1, c * length).fill_(true);
  return at::nonzero(begins.flatten()).squeeze(1);
}

data::Batch first_rows(data::Batch batch, int64_t rows) {
  for (at::Tensor* const tensor :
       {&batch.tokens, &batch.targets, &batch.loss_mask, &batch.starts, &batch.padding}) {
    if (tensor->defined()) *tensor = tensor->narrow(0, 0, rows);
  }
  return batch;
}

// Weights by name. The model may have gates of a memory that the folder's has not: they keep their
// initial values.
void take_weights(models::Decoder& model, const std::string& folder) {
  const at::NoGradGuard no_grad;
  models::Decoder source = models::load_model(folder, model.device());
  std::map<std::string, at::Tensor> values;
  source.parameters([&](const std::string& name, models::Parameter& parameter) {
    values.emplace(name, parameter.value);
  });
  const auto fail = [&](const std::string& what) {
    throw Error(fmt::format(
        "run.start_from = {}: {}; section [model] must describe this model", folder, what));
  };
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    const auto found = values.find(name);
    if (found == values.end()) {
      if (!name.ends_with("attn.memory_gate")) fail(fmt::format("has no weights {}", name));
      return;
    }
    if (found->second.sizes() != parameter.value.sizes()) {
      fail(fmt::format("{} has shape [{}], not [{}]",
                       name,
                       fmt::join(found->second.sizes(), ", "),
                       fmt::join(parameter.value.sizes(), ", ")));
    }
    parameter.value.copy_(found->second);
    values.erase(found);
  });
  if (!values.empty()) fail(fmt::format("has weights {} without a place", values.begin()->first));
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

void Trainer::take_first_weights() {
  if (experiment_.run.start_from.empty()) return;
  take_weights(model_, experiment_.run.start_from);
  model_.refresh_compute();
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
  if (steps_ == 0) return false;  // whatever the clock says, as with a budget of tokens
  const double end = experiment_.training.accuracy;
  return (end > 0 && accuracy_ >= end) || progress().fraction() >= 1;
}

Trainer::BatchLoss Trainer::batch_loss(const data::Batch& batch,
                                       models::Observer* observer,
                                       models::CrossbatchRule rule,
                                       int64_t documents,
                                       models::BatchMemory* memory) {
  const CrossbatchConfig& cross = experiment_.crossbatch;
  models::ForwardOptions options{
      .checkpoint_activations = experiment_.training.checkpoint_activations, .observer = observer};
  if (cross.contexts > 0) {
    options.crossbatch = models::Crossbatch{
        .rows = batch.tokens.size(0),
        .contexts = cross.contexts,
        .documents = documents,
        .rule = rule,
        .stop_gradient = cross.stop_gradient,
        .padding = batch.padding,
        .memory = memory,
        .memory_from_context =
            cross.memory_readers == CrossbatchContexts::kLast ? cross.contexts - 1 : 0};
  }
  const at::Tensor offsets = sequence_offsets(batch.starts, std::max<int64_t>(cross.contexts, 1));
  const at::Tensor hidden = model_.hidden(batch.tokens.flatten(), offsets, {}, options);
  const models::Parameter& head = model_.head();
  BatchLoss loss;
  if (counts_hits() && at::GradMode::is_enabled()) loss.hits = count_hits(hidden, batch);
  loss.sum = ops::cross_entropy(hidden,
                                head.value,
                                head.compute,
                                batch.targets.flatten(),
                                batch.loss_mask.flatten(),
                                experiment_.training.loss_chunk_tokens);
  return loss;
}

at::Tensor Trainer::count_hits(const at::Tensor& hidden, const data::Batch& batch) const {
  const at::NoGradGuard no_grad;
  const at::Tensor counted = at::nonzero(batch.loss_mask.flatten()).squeeze(1);
  const at::Tensor targets = batch.targets.flatten().index_select(0, counted).to(device());
  const at::Tensor rows = hidden.detach().index_select(0, counted.to(device()));
  const models::Parameter& head = model_.head();
  const at::Tensor weight = head.compute.defined() ? head.compute : head.value;
  at::Tensor hits = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device()));
  const int64_t chunk = experiment_.training.loss_chunk_tokens;
  for (int64_t begin = 0; begin < rows.size(0); begin += chunk) {
    const int64_t size = std::min(chunk, rows.size(0) - begin);
    const at::Tensor logits =
        at::matmul(rows.narrow(0, begin, size).to(weight.scalar_type()), weight.t());
    hits += logits.argmax(-1).eq(targets.narrow(0, begin, size)).sum();
  }
  return hits;
}

int64_t Trainer::documents() const {
  const CrossbatchConfig& cross = experiment_.crossbatch;
  if (by_accuracy()) return cross.documents[stage_];
  return crossbatch_documents(experiment_, steps_);
}

data::Batch Trainer::next_batch(data::Loader& loader) const {
  data::Batch batch = loader.next();
  const CrossbatchConfig& cross = experiment_.crossbatch;
  if (cross.contexts > 1 && cross.loss == CrossbatchContexts::kLast) {
    const int64_t T = batch.tokens.size(1);
    batch.loss_mask.narrow(1, 0, T - T / cross.contexts).zero_();
  }
  return batch;
}

models::BatchMemory* Trainer::memory(int64_t i) {
  const CrossbatchConfig& cross = experiment_.crossbatch;
  if (cross.memory == 0 || steps_ < cross.memory_from_step) return nullptr;
  while (std::ssize(memories_) < experiment_.training.accumulation) {
    memories_.push_back(empty_memory());
  }
  return &memories_[i];
}

models::BatchMemory Trainer::empty_memory() const {
  const CrossbatchConfig& cross = experiment_.crossbatch;
  return {experiment_.data.batch_size,
          cross.memory,
          cross.memory_across_documents,
          experiment_.data.overlap};
}

std::vector<int64_t> Trainer::memory_seen(int64_t i) const {
  std::vector<int64_t> seen(experiment_.data.batch_size);
  for (int64_t row = 0; row < std::ssize(seen); ++row) {
    seen[row] = crossbatch_memory_seen(experiment_, steps_, i * std::ssize(seen) + row);
  }
  return seen;
}

Trainer::Losses Trainer::accumulate_gradients(models::Observer* observer) {
  Losses losses;
  std::vector<data::Batch> batches;
  for (int64_t i = 0; i < experiment_.training.accumulation; ++i) {
    batches.push_back(next_batch(*loader_));
    losses.tokens += batches.back().loss_mask.sum(at::kDouble).item<double>();
  }
  tokens_ += experiment_.tokens_per_step();
  const double scale = 1 / std::max(losses.tokens, 1.0);
  losses.sum = at::zeros({}, at::TensorOptions().dtype(at::kDouble).device(device()));
  losses.hits = at::zeros_like(losses.sum);
  for (int64_t i = 0; i < experiment_.training.accumulation; ++i) {
    models::BatchMemory* const remembered = memory(i);
    if (remembered != nullptr) remembered->begin_step(batches[i].starts, memory_seen(i));
    const BatchLoss loss = batch_loss(batches[i],
                                      i == 0 ? observer : nullptr,
                                      experiment_.crossbatch.rule,
                                      documents(),
                                      remembered);
    losses.sum += loss.sum.detach();
    if (loss.hits.defined()) losses.hits += loss.hits;
    (loss.sum * scale).backward();
  }
  return losses;
}

StepResult Trainer::step(models::Observer* observer) {
  const double begin = seconds();
  StepResult result{.step = steps_ + 1};
  result.learning_rate =
      learning_rate(experiment_.schedule, experiment_.optimizer.learning_rate, progress());
  if (experiment_.crossbatch.contexts > 0) result.documents = documents();
  const Losses losses = accumulate_gradients(observer);
  result.tokens = tokens_;
  result.loss_tokens = losses.tokens;
  const at::Tensor grad_norm = optimizer_.grad_norm();
  // Zero gradients would decay weights all the same, and moments would still move them.
  const bool learns = losses.tokens > 0;
  if (learns) {
    optimizer_.step(result.learning_rate, grad_norm, losses.sum);
  } else {
    optimizer_.clear_gradients();
  }
  // Read together and last: on a GPU reading a number waits for all work before it.
  const at::Tensor read = at::stack({losses.sum, grad_norm, losses.hits}).cpu();
  result.loss = read[0].item<double>() / std::max(losses.tokens, 1.0);
  result.grad_norm = read[1].item<double>();
  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
  if (counts_hits()) {
    result.accuracy = read[2].item<double>() / std::max(losses.tokens, 1.0);
    go_by(result.accuracy);
  }
  ++steps_;
  for (models::BatchMemory& memory : memories_) result.skipped ? memory.clear() : memory.commit();
  if (result.skipped) {
    if (learns) optimizer_.take_back_step();
    count_skipped(result);
  } else {
    skipped_in_a_row_ = 0;
  }
  // The first step is the slowest (allocation, code paths met for the first time): forget it.
  const double taken = seconds() - begin;
  step_seconds_ = steps_ <= 2 ? taken : 0.8 * step_seconds_ + 0.2 * taken;
  return result;
}

void Trainer::go_by(double accuracy) {
  const CrossbatchConfig& cross = experiment_.crossbatch;
  const int64_t last = by_accuracy() ? std::ssize(cross.documents) - 1 : 0;
  accuracy_ = stage_ == last ? accuracy : -1;
  if (by_accuracy() && accuracy >= cross.accuracy) stage_ = std::min(stage_ + 1, last);
}

void Trainer::count_skipped(const StepResult& result) {
  ++skipped_steps_;
  ++skipped_in_a_row_;
  const bool learnt_nothing = done() && skipped_steps_ == steps_;
  if (skipped_in_a_row_ < experiment_.training.max_skipped_steps && !learnt_nothing) return;
  throw Diverged(
      fmt::format("training: {} is not finite in {} in a row (up to step {}); checkpoints "
                  "before that, if "
                  "there are any, are intact: lower optimizer.learning_rate = {} or lengthen the "
                  "warm-up, then train again or go "
                  "on with --resume",
                  std::isfinite(result.loss) ? "the gradient" : "the loss",
                  counted(skipped_in_a_row_, "step"),
                  result.step,
                  experiment_.optimizer.learning_rate));
}

std::optional<double> Trainer::held_out_loss(data::Loader& loader,
                                             int64_t tokens,
                                             const std::atomic<bool>* stop) {
  const at::NoGradGuard no_grad;
  double sum = 0, counted = 0;
  for (int64_t left = tokens; left > 0;) {
    if (stop != nullptr && *stop) return std::nullopt;
    data::Batch batch = next_batch(loader);
    const int64_t rows = (left - 1) / batch.tokens.size(1) + 1;
    if (rows < batch.tokens.size(0)) batch = first_rows(std::move(batch), rows);
    // Its own document only: the same measure whatever a step trains with.
    sum += batch_loss(batch, nullptr, models::CrossbatchRule::kRows, /*documents=*/1, nullptr)
               .sum.item<double>();
    counted += batch.loss_mask.sum(at::kDouble).item<double>();
    left -= batch.tokens.numel();
  }
  return counted > 0 ? std::optional(sum / counted) : std::nullopt;
}

nlohmann::json Trainer::counters() const {
  return {{"step", steps_},
          {"tokens", tokens_},
          {"skipped_steps", skipped_steps_},
          {"skipped_in_a_row", skipped_in_a_row_},
          {"stage", stage_},
          {"accuracy", accuracy_},
          {"seconds", seconds()},
          {"step_seconds", step_seconds_},
          {"loader", loader_->state()}};
}

std::vector<checkpoint::NamedTensor> Trainer::optimizer_state() const {
  std::vector<checkpoint::NamedTensor> state = optimizer_.state();
  for (size_t i = 0; i < memories_.size(); ++i) {
    for (models::BatchMemory::Saved& saved : memories_[i].state()) {
      saved.name.micro_batch = static_cast<int64_t>(i);
      state.push_back({saved.name.text(), std::move(saved.tensor)});
    }
  }
  return state;
}

void Trainer::restore_memories(std::span<const checkpoint::NamedTensor> saved) {
  const models::DecoderConfig& model = experiment_.model;
  const int64_t num_memories =
      experiment_.crossbatch.memory > 0 ? experiment_.training.accumulation : 0;
  std::vector<checkpoint::NamedTensor> moments;
  std::vector<std::vector<models::BatchMemory::Saved>> remembered(num_memories);
  for (const checkpoint::NamedTensor& tensor : saved) {
    const auto name = models::MemoryName::parse(tensor.name);
    if (!name) {
      moments.push_back(tensor);
      continue;
    }
    const bool has_layer =
        model.has_memory() ? model.is_memory_layer(name->layer) : name->layer < model.num_layers;
    if (name->micro_batch >= num_memories || !has_layer) {
      throw Error(fmt::format(
          "checkpoint: \"{}\" has no place in this run, whose {} memories are those of the "
          "micro-batches (training.accumulation, with crossbatch.memory) for layers with a memory",
          tensor.name,
          num_memories));
    }
    remembered[name->micro_batch].push_back({*name, tensor.tensor});
  }
  optimizer_.restore(moments);
  memories_.clear();
  for (const auto& of_micro_batch : remembered) {
    memories_.push_back(empty_memory());
    memories_.back().restore(of_micro_batch, device());
  }
}

void Trainer::restore(const nlohmann::json& counters,
                      std::span<const checkpoint::NamedTensor> optimizer) {
  const std::string file = "trainer.json";
  const models::JsonFields fields(counters, file);
  const std::optional<models::JsonFields> loader = fields.object("loader");
  if (!loader) fields.reject("loader", "an object");
  restore_memories(optimizer);
  model_.refresh_compute();
  steps_ = fields.integer("step");
  tokens_ = fields.integer("tokens");
  skipped_steps_ = fields.integer("skipped_steps");
  skipped_in_a_row_ = fields.integer("skipped_in_a_row");
  stage_ =
      std::clamp<int64_t>(fields.integer("stage", 0),
                          0,
                          std::max<int64_t>(std::ssize(experiment_.crossbatch.documents), 1) - 1);
  accuracy_ = fields.number("accuracy", -1.0);
  seconds_before_ = fields.number("seconds");
  step_seconds_ = fields.number("step_seconds");
  loader_->restore(loader->json());
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
