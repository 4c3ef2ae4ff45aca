#pragma once
// A model and data so small that a step takes milliseconds.

#include "reynard/data/loader.h"
#include "reynard/tensor/error.h"
#include "reynard/training/trainer.h"
#include "tests/support/device.h"
#include "tests/support/files.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include <map>
#include <memory>
#include <string>

namespace reynard::training {

inline Experiment tiny_experiment() {
  Experiment experiment;
  experiment.model.vocab_size = 17;
  experiment.model.hidden_size = 16;
  experiment.model.num_layers = 2;
  experiment.model.intermediate_size = 24;
  experiment.model.attention.num_heads = 2;
  experiment.model.attention.qk_norm = models::QKNorm::kPerHead;
  experiment.model.attention.output_gate = models::OutputGate::kSigmoid;
  experiment.model.attention.output_norm = true;
  experiment.model.attention.key_shift = true;
  experiment.model.attention.value_shift = true;
  experiment.data.path = "none.tokens";
  experiment.data.batch_size = 2;
  experiment.data.length = 12;
  experiment.schedule.warmup_fraction = 0.1;
  experiment.training.tokens = 20 * 24;
  experiment.training.precision = Precision::kF32;
  experiment.training.device =
      test::test_device().is_cuda() ? DeviceChoice::kCUDA : DeviceChoice::kCPU;
  return experiment;
}

// Batch n holds numbers that depend on n only.
class CountingLoader : public data::Loader {
 public:
  explicit CountingLoader(const data::LoaderConfig& config, int64_t vocabulary = 17)
      : rows_(config.batch_size), length_(config.length), vocabulary_(vocabulary) {}

  data::Batch next() override {
    data::Batch batch;
    batch.tokens = at::empty({rows_, length_}, at::kLong);
    batch.targets = at::empty({rows_, length_}, at::kLong);
    batch.loss_mask = at::ones({rows_, length_}, at::kFloat);
    batch.starts = at::zeros({rows_, length_}, at::kBool);
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t seed = count_++;
      for (int64_t t = 0; t < length_; ++t) {
        batch.tokens.data_ptr<int64_t>()[row * length_ + t] = number(seed, t);
        batch.targets.data_ptr<int64_t>()[row * length_ + t] = number(seed, t + 1);
      }
      batch.starts.data_ptr<bool>()[row * length_] = true;
      batch.starts.data_ptr<bool>()[row * length_ + length_ / 2] = seed % 3 == 0;
      batch.loss_mask.data_ptr<float>()[row * length_ + 1] = seed % 2 == 0 ? 1.0F : 0.0F;
    }
    return batch;
  }
  nlohmann::json state() const override { return {{"count", count_}}; }
  void restore(const nlohmann::json& state) override { count_ = state.at("count"); }
  const data::TokenFile& file() const override { throw Error("CountingLoader has no file"); }
  int64_t rows_of_one_pass() const override { return rows_; }

 private:
  int64_t number(int64_t seed, int64_t t) const { return (3 * seed + t * t + 1) % vocabulary_; }

  int64_t rows_, length_, vocabulary_, count_ = 0;
};

inline std::unique_ptr<Trainer> tiny_trainer(const Experiment& experiment) {
  return std::make_unique<Trainer>(experiment, std::make_unique<CountingLoader>(experiment.data));
}

inline std::map<std::string, at::Tensor> weights_of(Trainer& trainer) {
  std::map<std::string, at::Tensor> weights;
  trainer.model().parameters([&](const std::string& name, models::Parameter& parameter) {
    weights.emplace(name, parameter.value.detach().clone());
  });
  return weights;
}

}  // namespace reynard::training
