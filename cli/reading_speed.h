#pragma once
// How many tokens a second a model reads on this machine, by running it.

#include "reynard/evaluation/scorer.h"
#include "reynard/models/decoder.h"

#include <cstdint>
#include <memory>
#include <string>

namespace reynard::cli {

struct ReadingSpeedOptions {
  std::string dtype = "f32";  // or bf16, int8 (model folders only)
  std::string device = "auto";
  int64_t batch_tokens = 16384;  // longer sequences are read in pieces of it, from a cache
};

class ReadingSpeed {
 public:
  // model: as read_model_config takes it. A .toml has no weights and is run with random ones, whose
  // speed is the same but for pruning.
  ReadingSpeed(const std::string& model, const ReadingSpeedOptions& options);

  // Tokens per second of the forward pass over one sequence of `length` tokens, as evaluations run
  // it.
  double at(int64_t length);

 private:
  double seconds_to_read(int64_t length);

  models::Decoder decoder_;
  std::unique_ptr<evaluation::Scorer> scorer_;
};

}  // namespace reynard::cli
