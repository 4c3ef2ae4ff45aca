#include "reynard/generation/token_score.h"

#include "reynard/tensor/check.h"

#include <ATen/ops/log_softmax.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ranges>

namespace reynard::generation {

namespace {

// Their order is that of a sampler; at::topk has none for equal logits.
std::vector<int64_t> most_probable(std::span<const float> logits, int64_t count) {
  std::vector<int64_t> ids(static_cast<std::size_t>(count));
  std::ranges::partial_sort_copy(
      std::views::iota(int64_t{0}, std::ssize(logits)), ids, [&](int64_t a, int64_t b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
      });
  return ids;
}

}  // namespace

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
  const at::Tensor all_logits = logits.contiguous();
  for (int64_t r = 0; r < R; ++r) {
    const std::span row(all_logits.const_data_ptr<float>() + r * V, static_cast<std::size_t>(V));
    for (const int64_t id : most_probable(row, num_top)) {
      scored[r].top.push_back({id, values[r * V + id]});
    }
  }
  return scored;
}

}  // namespace reynard::generation
