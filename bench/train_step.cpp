#include "bench/train_step.h"

#include "bench/peer_process.h"
#include "reynard/data/loader.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/device.h"
#include "reynard/training/kept_memory.h"
#include "reynard/training/trainer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>
#include <memory>
#include <string_view>

namespace reynard::bench {

namespace {

// Sizes of the two models. The peer has one projection less and a wider MLP: the same count.
struct Sizes {
  std::string_view name;
  int64_t vocabulary, width, layers, heads, mlp, peer_mlp;
};
constexpr std::array kSizes = {Sizes{"10M", 258, 384, 6, 6, 768, 896},
                               Sizes{"125M", 50257, 768, 12, 12, 1792, 2048}};

const Sizes& sizes_named(const std::string& name) {
  for (const Sizes& sizes : kSizes) {
    if (sizes.name == name) return sizes;
  }
  throw Error(fmt::format("bench: --model {}; expected 10M or 125M", name));
}

// The same random rows again and again: what they say does not matter for speed, and a model that
// trains learns them.
class RepeatedBatch : public data::Loader {
 public:
  RepeatedBatch(int64_t vocabulary, int64_t rows, int64_t length) {
    const at::Tensor text = at::randint(vocabulary, {rows, length + 1}, at::kLong);
    batch_ = {.tokens = text.narrow(1, 0, length).contiguous(),
              .targets = text.narrow(1, 1, length).contiguous(),
              .loss_mask = at::ones({rows, length}, at::kFloat),
              .starts = at::zeros({rows, length}, at::kBool)};
  }
  data::Batch next() override { return batch_; }
  nlohmann::json state() const override { return nlohmann::json::object(); }
  void restore(const nlohmann::json& /*state*/) override {}
  const data::TokenFile& file() const override { throw Error("bench: random rows have no file"); }
  int64_t rows_of_one_pass() const override { return batch_.tokens.size(0); }

 private:
  data::Batch batch_;
};

training::Experiment fox_experiment(const TrainStepBench& options,
                                    const std::string& dtype,
                                    at::Device device) {
  training::Experiment experiment;
  experiment.model = fox_config(options.model);
  experiment.model.attention.log_pruning_tolerance = options.log_tolerance;
  experiment.data.batch_size = options.batch_size;
  experiment.data.length = options.length;
  experiment.optimizer.learning_rate = 1e-3;
  experiment.schedule.shape = training::ScheduleShape::kConstant;
  experiment.training.tokens = int64_t{1} << 40;
  experiment.training.device =
      device.is_cpu() ? training::DeviceChoice::kCPU : training::DeviceChoice::kCUDA;
  experiment.training.precision =
      dtype == "bf16" ? training::Precision::kBF16 : training::Precision::kF32;
  return experiment;
}

// The mean loss of fewer tokens may miss that of a model that knows nothing by more than
// check_learning allows.
constexpr int64_t kLeastTokens = 64;

void check_length(const TrainStepBench& options) {
  const int64_t least = (kLeastTokens + options.batch_size - 1) / options.batch_size;
  tensor::check_value(options.length >= least,
                      "bench train_step",
                      "--length",
                      options.length,
                      fmt::format(">= {} with --batch {}: whether a model learns does not show in "
                                  "steps of fewer than {} tokens",
                                  least,
                                  options.batch_size,
                                  kLeastTokens));
}

// Both must begin at the loss of a model that knows nothing and then fall.
void check_learning(const std::string& who, const Sizes& sizes, double first, double last) {
  if (std::abs(first - std::log(sizes.vocabulary)) < 0.3 && last < first) return;
  throw Error(fmt::format(
      "bench train_step: {} does not learn: loss {} at first, {} at last", who, first, last));
}

Row bench_dtype(const TrainStepBench& options, const std::string& dtype) {
  const Sizes& sizes = sizes_named(options.model);
  const at::Device device = tensor::choose_device(options.device);
  training::keep_freed_memory();  // as reynard train does
  training::Trainer trainer(
      fox_experiment(options, dtype, device),
      std::make_unique<RepeatedBatch>(sizes.vocabulary, options.batch_size, options.length));
  PeerProcess peer("train_step_peer.py",
                   {std::to_string(options.batch_size),
                    std::to_string(options.length),
                    dtype,
                    std::to_string(sizes.vocabulary),
                    std::to_string(sizes.width),
                    std::to_string(sizes.layers),
                    std::to_string(sizes.heads),
                    std::to_string(sizes.peer_mlp),
                    device.is_cpu() ? "cpu" : "cuda"});
  const double our_first = trainer.step().loss, peer_first = peer.ask_number("step");
  double our_last = our_first, peer_last = peer_first;
  const Medians seconds = time_by_turns(
      options.repeats,
      [&] { our_last = trainer.step().loss; },
      [&] { peer_last = peer.ask_number("step"); });
  check_learning("FoX (Pro)", sizes, our_first, our_last);
  check_learning("the peer", sizes, peer_first, peer_last);
  std::string shape = fmt::format("{} B{} T{}", sizes.name, options.batch_size, options.length);
  if (options.log_tolerance != 0) shape += fmt::format(" e^{:g}", options.log_tolerance);
  return with_rates({.name = "train_step",
                     .shape = shape,
                     .dtype = dtype,
                     .device = device_name(device),
                     .peer = "torch_eager",
                     .unit = "tokens/s"},
                    static_cast<double>(options.batch_size * options.length),
                    seconds);
}

}  // namespace

models::DecoderConfig fox_config(const std::string& model) {
  const Sizes& sizes = sizes_named(model);
  models::DecoderConfig config;
  config.vocab_size = sizes.vocabulary;
  config.hidden_size = sizes.width;
  config.num_layers = sizes.layers;
  config.intermediate_size = sizes.mlp;
  models::AttentionMixerConfig& attention = config.attention;
  attention.num_heads = sizes.heads;
  attention.qk_norm = models::QKNorm::kPerHead;
  attention.output_gate = models::OutputGate::kSigmoid;
  attention.output_norm = true;
  attention.key_shift = true;
  attention.value_shift = true;
  return config;
}

Rows bench_train_step(const TrainStepBench& options) {
  check_length(options);
  Rows rows;
  for (const std::string& dtype : options.dtypes) rows.push_back(bench_dtype(options, dtype));
  return rows;
}

}  // namespace reynard::bench
