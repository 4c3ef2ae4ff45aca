#include "bench/train_step.h"

#include "bench/peer_process.h"
#include "reynard/data/loader.h"
#include "reynard/tensor/check.h"
#include "reynard/training/trainer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <memory>

namespace reynard::bench {

namespace {

constexpr int64_t kVocabulary = 258;

// The same random rows again and again: what they say does not matter for speed, and a model that
// trains learns them.
class RepeatedBatch : public data::Loader {
 public:
  RepeatedBatch(int64_t rows, int64_t length) {
    const at::Tensor text = at::randint(kVocabulary, {rows, length + 1}, at::kLong);
    batch_ = {.tokens = text.narrow(1, 0, length).contiguous(),
              .targets = text.narrow(1, 1, length).contiguous(),
              .loss_mask = at::ones({rows, length}, at::kFloat),
              .starts = at::zeros({rows, length}, at::kBool)};
  }
  data::Batch next() override { return batch_; }
  nlohmann::json state() const override { return nlohmann::json::object(); }
  void restore(const nlohmann::json& /*state*/) override {}
  const data::TokenFile& file() const override { throw Error("bench: random rows have no file"); }

 private:
  data::Batch batch_;
};

// FoX (Pro), 9.9M parameters. The peer has one projection less and an MLP of 896: the same count.
training::Experiment fox_experiment(const TrainStepBench& options, const std::string& dtype) {
  training::Experiment experiment;
  experiment.model.vocab_size = kVocabulary;
  experiment.model.hidden_size = 384;
  experiment.model.num_layers = 6;
  experiment.model.intermediate_size = 768;
  models::AttentionMixerConfig& attention = experiment.model.attention;
  attention.num_heads = 6;
  attention.qk_norm = models::QKNorm::kPerHead;
  attention.output_gate = models::OutputGate::kSigmoid;
  attention.output_norm = true;
  attention.key_shift = true;
  attention.value_shift = true;
  experiment.data.batch_size = options.batch_size;
  experiment.data.length = options.length;
  experiment.optimizer.learning_rate = 1e-3;
  experiment.schedule.shape = training::ScheduleShape::kConstant;
  experiment.training.tokens = int64_t{1} << 40;
  experiment.training.precision =
      dtype == "bf16" ? training::Precision::kBF16 : training::Precision::kF32;
  return experiment;
}

// Both must begin at the loss of a model that knows nothing and then fall.
void check_learning(const std::string& who, double first, double last) {
  if (std::abs(first - std::log(kVocabulary)) < 0.3 && last < first) return;
  throw Error(fmt::format(
      "bench train_step: {} does not learn: loss {} at first, {} at last", who, first, last));
}

Row bench_dtype(const TrainStepBench& options, const std::string& dtype) {
  training::Trainer trainer(fox_experiment(options, dtype),
                            std::make_unique<RepeatedBatch>(options.batch_size, options.length));
  PeerProcess peer("train_step_peer.py",
                   {std::to_string(options.batch_size), std::to_string(options.length), dtype});
  const double our_first = trainer.step().loss, peer_first = std::stod(peer.ask("step"));
  double our_last = our_first, peer_last = peer_first;
  const Medians seconds = time_by_turns(
      options.repeats,
      [&] { our_last = trainer.step().loss; },
      [&] { peer_last = std::stod(peer.ask("step")); });
  check_learning("FoX (Pro)", our_first, our_last);
  check_learning("the peer", peer_first, peer_last);
  const auto tokens = static_cast<double>(options.batch_size * options.length);
  return {.name = "train_step",
          .shape = fmt::format("10M B{} T{}", options.batch_size, options.length),
          .dtype = dtype,
          .device = cpu_name(),
          .ours = tokens / seconds.ours,
          .peer = "torch_eager",
          .peer_value = tokens / seconds.peer,
          .unit = "tokens/s",
          .ratio = seconds.peer / seconds.ours};
}

}  // namespace

std::vector<Row> bench_train_step(const TrainStepBench& options) {
  std::vector<Row> rows;
  for (const std::string& dtype : options.dtypes) rows.push_back(bench_dtype(options, dtype));
  return rows;
}

}  // namespace reynard::bench
