#pragma once
// Chooses the next token of one text from logits. The same seed and the same logits give the same
// tokens on every machine, whatever other texts do. Logits are the same to their last bits only
// where the same kernels make them (docs/generation.md).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace reynard::generation {

struct LogitBias {
  int64_t token = 0;
  double bias = 0;  // added to the token's logit
};

// Applied in this order.
struct SamplerOptions {
  // Logits of tokens of the prompt and the text so far: divided by this where positive, else
  // multiplied (CTRL, Keskar et al. 2019); 1: off
  double repetition_penalty = 1;
  double frequency_penalty = 0;  // subtracted once per occurrence in the text so far
  double presence_penalty = 0;   // subtracted once from tokens that occur in the text so far
  std::vector<LogitBias> logit_bias = {};  // ids beyond the logits are an error
  double temperature = 0;  // 0: the most probable token; 1: the model's distribution
  int64_t top_k = 0;       // only the k most probable tokens; 0: all
  double top_p = 0;        // only the fewest of these with this probability; 0: all
  double min_p = 0;        // only tokens with this share of the largest probability
  uint64_t seed = 0;
};

class Sampler {
 public:
  // Throws reynard::Error for a value outside its range and for biases of one token without a sum.
  explicit Sampler(const SamplerOptions& options);

  // Tokens before the text; the repetition penalty counts them.
  void read_prompt(std::span<const int64_t> tokens);
  // Starts a text of its own after the same prompt.
  void reseed(uint64_t seed) { random_.seed(seed); }

  // logits (V) f32 -> token id, which belongs to the text from now on. Of equal logits the lower
  // id is preferred. Throws reynard::Error when there is no logit, one is not finite, or penalties
  // and biases make one NaN.
  int64_t next(const at::Tensor& logits);

 private:
  void penalize(std::vector<double>& logits) const;
  int64_t draw(const std::vector<double>& logits);

  SamplerOptions options_;
  std::mt19937_64 random_;
  std::unordered_set<int64_t> seen_;              // in the prompt or the text
  std::unordered_map<int64_t, int64_t> written_;  // occurrences in the text
};

}  // namespace reynard::generation
