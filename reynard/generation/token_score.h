#pragma once
// Log-probabilities of chosen tokens and of the most probable ones beside them: always of the
// model's own distribution, whatever a sampler does with it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace reynard::generation {

struct TokenScore {
  int64_t token = 0;
  float logprob = std::numeric_limits<float>::quiet_NaN();  // natural log; NaN: not asked for
};

struct ScoredToken : TokenScore {
  // The most probable tokens, best first; of equal logits the lower id, as a sampler has it.
  std::vector<TokenScore> top;
};

struct ScoreOptions {
  bool logprobs = false;
  int64_t num_top = 0;  // most probable tokens listed per token
};

// logits (R, V) f32, one row per token. Throws reynard::Error where a log-probability of the tokens
// is not finite.
std::vector<ScoredToken> score_tokens(const at::Tensor& logits,
                                      std::span<const int64_t> tokens,
                                      const ScoreOptions& options);

}  // namespace reynard::generation
