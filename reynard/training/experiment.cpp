#include "reynard/training/experiment.h"

#include "reynard/tensor/cpu_features.h"
#include "reynard/tensor/device.h"

#include <string>

namespace reynard::training {

config::EnumNames<ScheduleShape> enum_names(ScheduleShape) {
  return {{ScheduleShape::kConstant, "constant"},
          {ScheduleShape::kLinear, "linear"},
          {ScheduleShape::kCosine, "cosine"},
          {ScheduleShape::kOneMinusSqrt, "one-minus-sqrt"},
          {ScheduleShape::kWSD, "wsd"}};
}

config::EnumNames<Precision> enum_names(Precision) {
  return {{Precision::kAuto, "auto"}, {Precision::kF32, "f32"}, {Precision::kBF16, "bf16"}};
}

config::EnumNames<DeviceChoice> enum_names(DeviceChoice) {
  return {
      {DeviceChoice::kAuto, "auto"}, {DeviceChoice::kCPU, "cpu"}, {DeviceChoice::kCUDA, "cuda"}};
}

void OptimizerConfig::check(config::Problems& problems, const std::string& path) const {
  if (beta1 >= 1) problems.add(config::key(path, "beta1"), "must be below 1");
  if (beta2 >= 1) problems.add(config::key(path, "beta2"), "must be below 1");
}

void Experiment::check(config::Problems& problems, const std::string& path) const {
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
  if (schedule.shape == ScheduleShape::kWSD &&
      schedule.warmup_fraction + schedule.decay_fraction > 1) {
    add("schedule.decay_fraction", "and schedule.warmup_fraction together must be at most 1");
  }
  if (run.folder.empty()) add("run.folder", "must name a folder for the results of the run");
  constexpr int64_t kMostStepTokens = int64_t{1} << 31;
  if (training.accumulation > kMostStepTokens / (data.batch_size * data.length)) {
    add("training.accumulation",
        "times data.batch_size times data.length must be at most 2^31 tokens per step");
  }
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
