#pragma once
// Chooses the next token from logits. The same seed gives the same tokens on every machine for the
// same logits.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>

namespace reynard::generation {

struct SamplerOptions {
  double temperature = 0;  // 0: the most probable token; 1: the model's distribution
  int64_t top_k = 0;       // only the k most probable tokens; 0: all
  double top_p = 0;        // only the fewest tokens with at least this probability; 0: all
  uint64_t seed = 0;
};

class Sampler {
 public:
  // Throws reynard::Error for a negative temperature or top_k, or top_p outside [0, 1].
  explicit Sampler(const SamplerOptions& options);

  // logits (V) f32 -> token id. Of equal logits the lower id is preferred. Throws reynard::Error
  // when there is no logit or one is NaN.
  int64_t next(const at::Tensor& logits);

 private:
  SamplerOptions options_;
  std::mt19937_64 random_;
};

}  // namespace reynard::generation
