#include "reynard/training/experiment.h"

#include "reynard/data/random.h"
#include "reynard/tensor/cpu_features.h"
#include "reynard/tensor/device.h"
#include "reynard/training/unread_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>

namespace reynard::training {

config::EnumNames<ScheduleShape> enum_names(ScheduleShape) {
  return {{ScheduleShape::kConstant, "constant"},
          {ScheduleShape::kLinear, "linear"},
          {ScheduleShape::kCosine, "cosine"},
          {ScheduleShape::kOneMinusSqrt, "one-minus-sqrt"},
          {ScheduleShape::kWSD, "wsd"},
          {ScheduleShape::kInverseSqrt, "inverse-sqrt"}};
}

config::EnumNames<OptimizerRule> enum_names(OptimizerRule) {
  return {{OptimizerRule::kAdamW, "adamw"}, {OptimizerRule::kAdafactor, "adafactor"}};
}

config::EnumNames<Precision> enum_names(Precision) {
  return {{Precision::kAuto, "auto"}, {Precision::kF32, "f32"}, {Precision::kBF16, "bf16"}};
}

config::EnumNames<DeviceChoice> enum_names(DeviceChoice) {
  return {
      {DeviceChoice::kAuto, "auto"}, {DeviceChoice::kCPU, "cpu"}, {DeviceChoice::kCUDA, "cuda"}};
}

config::EnumNames<DocumentsOrder> enum_names(DocumentsOrder) {
  return {{DocumentsOrder::kInTurn, "in_turn"},
          {DocumentsOrder::kDrawn, "drawn"},
          {DocumentsOrder::kByAccuracy, "by_accuracy"}};
}

config::EnumNames<CrossbatchContexts> enum_names(CrossbatchContexts) {
  return {{CrossbatchContexts::kAll, "all"}, {CrossbatchContexts::kLast, "last"}};
}

void OptimizerConfig::check(config::Problems& problems, const std::string& path) const {
  // The rules compute in f32.
  using F32 = std::numeric_limits<float>;
  for (const auto& [key, beta] : {std::pair("beta1", beta1), std::pair("beta2", beta2)}) {
    if (static_cast<float>(beta) < 1) continue;
    problems.add(config::key(path, key), "must be below 1, rounded to f32 too");
  }
  if (epsilon < F32::min() || epsilon > F32::max()) {
    problems.add(config::key(path, "epsilon"),
                 fmt::format("must be between {:g} and {:g}, as f32 has", F32::min(), F32::max()));
  }
}

namespace {

// Streams of random_bits, apart from the loader's.
constexpr uint64_t kDocumentsStream = 0x63726f7373, kMemorySeenStream = 0x7365656e;

// Transformer-XL: rows see what they were in the step before.
void check_recurrence(const Experiment& experiment,
                      const std::function<void(const char*, const std::string&)>& add) {
  const CrossbatchConfig& cross = experiment.crossbatch;
  const models::AttentionMixerConfig& attention = experiment.model.attention;
  if (cross.contexts != 1 || cross.memory == 0) {
    add("crossbatch.contexts",
        "must be 1, with crossbatch.memory above 0, for model.mixer = \"transformer_xl\"");
  }
  if (attention.forget_gate != models::ForgetGate::kNone || attention.key_shift ||
      attention.value_shift) {
    add("model.attention",
        "must have neither forget gates nor token shifts to be trained as a transformer_xl: both "
        "would end with each row");
  }
}

// The memory without gradients of earlier steps.
void check_memory(const Experiment& experiment,
                  const std::function<void(const char*, const std::string&)>& add) {
  const CrossbatchConfig& cross = experiment.crossbatch;
  const bool walks = cross.rule == models::CrossbatchRule::kRows &&
                     experiment.data.mode == data::LoaderMode::kOrdered;
  if (cross.memory > 0 && !walks) {
    add("crossbatch.memory", "needs crossbatch.rule = \"rows\" and data.mode = \"ordered\"");
  }
  if (cross.memory > (int64_t{1} << 30)) add("crossbatch.memory", "must be at most 2^30 tokens");
  if (cross.memory > 0 &&
      std::ranges::any_of(cross.memory_seen, [&](int64_t n) { return n > cross.memory; })) {
    add("crossbatch.memory_seen",
        fmt::format("must be at most crossbatch.memory = {}", cross.memory));
  }
}

void check_crossbatch(const Experiment& experiment,
                      const std::function<void(const char*, const std::string&)>& add) {
  const CrossbatchConfig& cross = experiment.crossbatch;
  const data::LoaderConfig& data = experiment.data;
  const bool packs = cross.rule == models::CrossbatchRule::kPacks;
  const models::DecoderConfig& model = experiment.model;
  const bool recurrent = model.mixer == "transformer_xl";
  if (recurrent) check_recurrence(experiment, add);
  if (cross.contexts == 0) return;
  if (!model.has_memory() && !recurrent) {
    add("crossbatch.contexts", "needs model.mixer = \"memory_attention\" or \"transformer_xl\"");
  }
  if (data.length % cross.contexts != 0) {
    add("crossbatch.contexts", fmt::format("must divide data.length = {}", data.length));
  } else if (model.has_memory() && data.length / cross.contexts > model.memory.window) {
    add("crossbatch.contexts",
        fmt::format("gives contexts of {} tokens; the model's are model.memory.window = {}",
                    data.length / cross.contexts,
                    model.memory.window));
  }
  if (data.overlap % std::max<int64_t>(data.length / cross.contexts, 1) != 0) {
    add("data.overlap",
        fmt::format("must be whole contexts of {} tokens", data.length / cross.contexts));
  }
  if (cross.documents.empty()) add("crossbatch.documents", "must list at least one number");
  if (!cross.documents.empty() && std::ranges::max(cross.documents) > data.batch_size) {
    add("crossbatch.documents",
        fmt::format("must be at most data.batch_size = {}", data.batch_size));
  }
  const bool in_turn = cross.order == DocumentsOrder::kInTurn;
  if (cross.steps.size() + 1 != std::max<size_t>(in_turn ? cross.documents.size() : 1, 1)) {
    add("crossbatch.steps",
        in_turn ? "must be one fewer than crossbatch.documents"
                : "must be empty unless crossbatch.order = \"in_turn\"");
  }
  if (!std::ranges::is_sorted(cross.steps)) add("crossbatch.steps", "must not fall");
  check_memory(experiment, add);
  if (data.mode == data::LoaderMode::kPacked) {
    add("data.mode", "must be ordered, slices or padded with crossbatch: a row is one document");
  }
  if (data.mode == data::LoaderMode::kPadded &&
      (packs || std::ranges::any_of(cross.documents, [](int64_t d) { return d > 1; }))) {
    add("data.mode",
        "\"padded\" needs crossbatch.rule = \"rows\" and crossbatch.documents = 1: padding of "
        "other "
        "rows would be seen");
  }
}

}  // namespace

int64_t crossbatch_documents(const Experiment& experiment, int64_t step) {
  const CrossbatchConfig& cross = experiment.crossbatch;
  const auto count = static_cast<int64_t>(cross.documents.size());
  if (cross.order == DocumentsOrder::kDrawn) {
    const uint64_t bits = data::random_bits(
        static_cast<uint64_t>(experiment.run.seed), kDocumentsStream, static_cast<uint64_t>(step));
    return cross.documents[data::below(bits, count)];
  }
  const auto passed = std::ranges::upper_bound(cross.steps, step) - cross.steps.begin();
  return cross.documents[std::min<int64_t>(passed, count - 1)];
}

int64_t crossbatch_memory_seen(const Experiment& experiment, int64_t step, int64_t row) {
  const CrossbatchConfig& cross = experiment.crossbatch;
  if (cross.memory_seen.empty()) return cross.memory;
  const int64_t rows = experiment.data.batch_size * experiment.training.accumulation;
  const uint64_t bits = data::random_bits(static_cast<uint64_t>(experiment.run.seed),
                                          kMemorySeenStream,
                                          static_cast<uint64_t>(step * rows + row));
  return cross.memory_seen[data::below(bits, std::ssize(cross.memory_seen))];
}

void Experiment::check(config::Problems& problems, const std::string& path) const {
  check_choices(problems, path);
  for (const auto& [key, needed] : unread_keys(*this)) {
    problems.add(config::key(path, key), needed);
  }
}

void Experiment::check_choices(config::Problems& problems, const std::string& path) const {
  const auto add = [&](const char* key, const std::string& message) {
    problems.add(config::key(path, key), message);
  };
  if (training.tokens == 0 && training.minutes == 0) {
    add("training.tokens", "there is no budget: set training.tokens or training.minutes");
  }
  if (schedule.warmup_tokens > 0 && schedule.warmup_fraction > 0) {
    add("schedule.warmup_fraction", "excludes schedule.warmup_tokens; set one of them");
  }
  if (schedule.warmup_tokens > 0 && training.minutes > 0) {
    add("schedule.warmup_tokens",
        "is not possible with training.minutes, whose tokens are not known before; set "
        "schedule.warmup_fraction");
  }
  if (training.tokens > 0 && schedule.warmup_tokens > training.tokens) {
    add("schedule.warmup_tokens",
        "must be at most training.tokens = " + std::to_string(training.tokens));
  }
  const double warmup =
      schedule.warmup_tokens > 0 && training.tokens > 0
          ? static_cast<double>(schedule.warmup_tokens) / static_cast<double>(training.tokens)
          : schedule.warmup_fraction;
  if (schedule.shape == ScheduleShape::kWSD && warmup + schedule.decay_fraction > 1) {
    add("schedule.decay_fraction", "and the share of the warm-up together must be at most 1");
  }
  if (schedule.shape == ScheduleShape::kInverseSqrt && schedule.warmup_fraction == 0 &&
      schedule.warmup_tokens == 0) {
    add("schedule.shape", "\"inverse-sqrt\" needs a warm-up, from whose end the rate falls");
  }
  if (run.folder.empty()) add("run.folder", "must name a folder for the results of the run");
  constexpr int64_t kMostStepTokens = int64_t{1} << 31;
  if (training.accumulation > kMostStepTokens / (data.batch_size * data.length)) {
    add("training.accumulation",
        "times data.batch_size times data.length must be at most 2^31 tokens per step");
  }
  if (validation.every > 0 && validation.path.empty()) {
    add("validation.every", "needs validation.path, the held-out text to measure");
  }
  check_crossbatch(*this, add);
  if (data.path.empty()) {
    add("data.path", "must name a token file (write one with `reynard prepare`)");
  }
}

at::Device chosen_device(DeviceChoice choice) {
  for (const auto& [item, name] : enum_names(choice)) {
    if (item == choice) return tensor::choose_device(name);
  }
  return at::kCPU;
}

at::ScalarType compute_dtype(Precision precision, at::Device device) {
  if (precision == Precision::kAuto) {
    if (device.is_cuda()) return at::kBFloat16;
    return tensor::cpu_features().avx512_bf16 || tensor::cpu_features().amx_bf16 ? at::kBFloat16
                                                                                 : at::kFloat;
  }
  return precision == Precision::kBF16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace reynard::training
