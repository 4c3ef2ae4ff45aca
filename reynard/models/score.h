#pragma once
// Scores of given next tokens under a model: what evaluation reads instead of logits. No gradients;
// logits exist only for a few hundred tokens at a time.

#include <ATen/core/Tensor.h>

#include <span>

namespace reynard::models {

class Decoder;
class SequenceState;
struct Observer;

struct TokenScores {
  // On the decoder's device.
  at::Tensor logprob;  // (N) f32: log probability of the target, natural log
  at::Tensor greedy;   // (N) i64: the most probable token
};

// Scores targets[n] as the token after tokens[n].
//   tokens (N) i64, offsets (S) i64, states: as Decoder::hidden
//   targets (N) i64
TokenScores score(Decoder& decoder,
                  const at::Tensor& tokens,
                  const at::Tensor& offsets,
                  const at::Tensor& targets,
                  std::span<SequenceState* const> states = {},
                  Observer* observer = nullptr);

// Logits (R, V) f32 of the given rows of `hidden` (N, C): what a sampler reads after prefill or a
// decode step. No gradients.
//   rows (R) i64; undefined: all rows
at::Tensor logits(Decoder& decoder, const at::Tensor& hidden, const at::Tensor& rows = {});

}  // namespace reynard::models
