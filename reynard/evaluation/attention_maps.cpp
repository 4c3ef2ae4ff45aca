#include "reynard/evaluation/attention_maps.h"

#include "reynard/attention/bias.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace reynard::evaluation {

namespace {

constexpr int64_t kQueries = 64;  // rows of the dense matrix that exist at once

// x (H, R, N) -> sums (H, R, cells) over the keys of each cell.
at::Tensor sum_over_cells(const at::Tensor& x, int64_t cells) {
  return x.reshape({x.size(0), x.size(1), cells, x.size(2) / cells}).sum(-1);
}

}  // namespace

CellMaps cell_maps(const models::AttentionView& view, int64_t cells) {
  const int64_t N = view.q.size(0);
  const int64_t H = view.q.size(1);
  tensor::check_value(cells >= 1 && N % cells == 0, "cell_maps", "cells", cells, "a divisor of N");
  const int64_t per_cell = N / cells;
  const int64_t repeats = H / view.k.size(1);
  const at::Tensor q = view.q.to(at::kFloat).transpose(0, 1);  // (H, N, D)
  const at::Tensor k = view.k.to(at::kFloat).transpose(0, 1).repeat_interleave(repeats, 0);
  const double scale = 1 / std::sqrt(static_cast<double>(view.q.size(2)));
  at::Tensor sums;  // (H, N) f64
  if (view.log_gate.defined()) sums = attention::gate_sums(view.log_gate.unsqueeze(0)).squeeze(0);

  const at::TensorOptions options = q.options();
  CellMaps maps{at::zeros({H, cells, cells}, options), {}};
  if (sums.defined()) maps.decay = at::zeros({H, cells, cells}, options);
  const at::Tensor keys = at::arange(N, at::kLong);
  for (int64_t first = 0; first < N; first += kQueries) {
    const int64_t rows = std::min(kQueries, N - first);
    const at::Tensor queries = keys.narrow(0, first, rows);
    at::Tensor visible = keys.unsqueeze(0) <= queries.unsqueeze(1);  // (R, N)
    if (view.first_key.defined()) {
      visible = visible & (keys.unsqueeze(0) >= view.first_key.narrow(0, first, rows).unsqueeze(1));
    }
    at::Tensor logits = at::einsum("hrd,hnd->hrn", {q.narrow(1, first, rows), k}) * scale;
    const at::Tensor cell = queries.floor_divide(per_cell);
    if (sums.defined()) {
      const at::Tensor bias = sums.narrow(1, first, rows).unsqueeze(2) - sums.unsqueeze(1);
      logits = logits + bias.to(at::kFloat);
      const at::Tensor decay = at::where(visible, bias.exp(), 0.0).to(at::kFloat);
      maps.decay.index_add_(1, cell, sum_over_cells(decay, cells));
    }
    const at::Tensor hidden = at::where(visible, logits, -std::numeric_limits<float>::infinity());
    const at::Tensor weights = at::softmax(hidden, -1);
    maps.attention.index_add_(1, cell, sum_over_cells(weights, cells));
  }
  maps.attention /= static_cast<double>(per_cell);
  if (maps.decay.defined()) {
    // Pairs j <= i of a cell: all below the diagonal, half and the diagonal itself on it.
    const auto n = static_cast<double>(per_cell);
    const at::Tensor index = at::arange(cells, at::kLong);
    const at::Tensor diagonal = index.unsqueeze(0) == index.unsqueeze(1);
    maps.decay = at::where(diagonal, maps.decay / (n * (n + 1) / 2), maps.decay / (n * n));
  }
  return maps;
}

}  // namespace reynard::evaluation
