#include "reynard/models/score.h"

#include "reynard/models/decoder.h"
#include "reynard/ops/cross_entropy.h"
#include "reynard/tensor/check.h"

#include <ATen/core/grad_mode.h>

namespace reynard::models {

TokenScores score(Decoder& decoder,
                  const at::Tensor& tokens,
                  const at::Tensor& offsets,
                  const at::Tensor& targets,
                  std::span<SequenceState* const> states,
                  Observer* observer) {
  tensor::check_shape("score", "targets", targets, {{"N", tokens.size(0)}});
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = decoder.hidden(tokens, offsets, states, {.observer = observer});
  const Parameter& head = decoder.head();
  ops::TokenScores scores = ops::score_tokens(
      hidden, head.value, head.compute, targets, /*chunk_tokens=*/2048, head.scales);
  return {.logprob = scores.logprob, .greedy = scores.greedy};
}

at::Tensor logits(Decoder& decoder, const at::Tensor& hidden, const at::Tensor& rows) {
  tensor::check_shape("logits", "hidden", hidden, {{"N"}, {"C", decoder.config().hidden_size}});
  const at::NoGradGuard no_grad;
  const at::Tensor chosen =
      rows.defined() ? hidden.index_select(0, rows.to(hidden.device())) : hidden;
  return ops::logits(chosen, weight_of(decoder.head())).to(at::kFloat);
}

}  // namespace reynard::models
