#include "reynard/generation/token_score.h"

#include "reynard/tensor/check.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/topk.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace reynard::generation {

std::vector<ScoredToken> score_tokens(const at::Tensor& logits,
                                      std::span<const int64_t> tokens,
                                      const ScoreOptions& options) {
  const auto R = static_cast<int64_t>(tokens.size());
  tensor::check_shape("score_tokens", "logits", logits, {{"R", R}, {"V"}});
  std::vector<ScoredToken> scored(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) scored[i].token = tokens[i];
  if (!options.logprobs || R == 0) return scored;
  const int64_t V = logits.size(1), num_top = std::min(options.num_top, V);
  const at::Tensor logprobs = at::log_softmax(logits, 1).contiguous();
  const auto* values = logprobs.const_data_ptr<float>();
  for (int64_t r = 0; r < R; ++r) {
    scored[r].logprob = values[r * V + tokens[r]];
    if (std::isfinite(scored[r].logprob)) continue;
    throw Error(fmt::format(
        "score_tokens: the log-probability of token {} is {}; expected a finite number: weights or "
        "a memory that hold NaN or numbers that are too large give such",
        tokens[r],
        scored[r].logprob));
  }
  if (num_top == 0) return scored;
  const auto [best, ids] = at::topk(logprobs, num_top, 1);
  const at::Tensor best_rows = best.contiguous(), id_rows = ids.contiguous();
  for (int64_t i = 0; i < R * num_top; ++i) {
    scored[i / num_top].top.push_back(
        {id_rows.const_data_ptr<int64_t>()[i], best_rows.const_data_ptr<float>()[i]});
  }
  return scored;
}

}  // namespace reynard::generation
