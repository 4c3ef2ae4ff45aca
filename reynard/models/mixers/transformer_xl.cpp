#include "reynard/models/mixers/transformer_xl.h"

#include "reynard/models/batch_memory.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/maximum.h>

#include <vector>

namespace reynard::models {

at::Tensor TransformerXLMixer::forward(const at::Tensor& x,
                                       const Ragged& ragged,
                                       int64_t layer,
                                       Observer* observer) {
  BatchMemory* const memory = ragged.crossbatch ? ragged.crossbatch->memory : nullptr;
  if (memory == nullptr) return attention_.forward(x, ragged, layer, observer);
  const AttentionMixer::Projections p = attention_.project(x, ragged, layer);
  return attention_.output(attend_rows(p, ragged, layer, *memory), p);
}

at::Tensor TransformerXLMixer::attend_rows(AttentionMixer::Projections p,
                                           const Ragged& ragged,
                                           int64_t layer,
                                           BatchMemory& memory) const {
  const int64_t rows = ragged.crossbatch->rows, N = p.q.size(0), T = N / rows;
  const auto grid = [&](const at::Tensor& t) { return t.reshape({rows, T, t.size(1), t.size(2)}); };
  memory.stage(layer, grid(p.k), grid(p.v));
  const BatchMemory::View before = memory.view(layer);
  const int64_t M = before.size();
  // Keys are remembered without positions; there, a row's oldest one is at position 0.
  attention_.rotate(p, M > 0 ? ragged.positions + M : ragged.positions);
  const at::Tensor begins = at::arange(0, N, T, ragged.first_key.options()).unsqueeze(1);
  std::vector<attention::KeyPart> parts = {
      {.k = grid(p.k),
       .v = grid(p.v),
       .sums = {},
       .first_key = (ragged.first_key.view({rows, T}) - begins).contiguous()}};
  if (M > 0) {
    at::Tensor first = memory.first_key(layer, 0, T);
    if (window_ > 0) {
      // Token t sees itself, t others of the row and what is left of the window.
      const at::Tensor near = (at::arange(T, first.options()) + (M + 1 - window_)).clamp(0, M);
      first = at::maximum(first, near);
    }
    const at::Tensor positions =
        at::arange(M, ragged.positions.options()).expand({rows, M}).flatten();
    parts.push_back({.k = attention_.rotated(before.k.flatten(0, 1), positions).view_as(before.k),
                     .v = before.v,
                     .sums = {},
                     .first_key = first.to(before.k.device()),
                     .causal = false});
  }
  const auto seen =
      attention::attention(grid(p.q), {}, parts, attention_.pruning_bound(p), attention_.options());
  return seen.out.reshape({N, p.q.size(1), p.q.size(2)});
}

}  // namespace reynard::models
