#include "reynard/evaluation/attention_maps.h"

#include "reynard/evaluation/attention_rows.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

namespace reynard::evaluation {

namespace {

// First token of each cell, and one past the last: (cells + 1).
std::vector<int64_t> bounds_of(const CellOptions& options) {
  std::vector<int64_t> bounds;
  const int64_t tokens = options.end - options.begin;
  for (int64_t a = 0; a <= options.cells; ++a) {
    bounds.push_back(options.begin + a * tokens / options.cells);
  }
  return bounds;
}

// The queries that are read (Q) i64, and the cell of each.
struct Queries {
  at::Tensor positions, cells;
};
Queries queries_of(const std::vector<int64_t>& bounds, int64_t most) {
  std::vector<at::Tensor> positions;
  std::vector<at::Tensor> cells;
  for (size_t a = 0; a + 1 < bounds.size(); ++a) {
    const int64_t size = bounds[a + 1] - bounds[a];
    const int64_t count = most > 0 ? std::min(most, size) : size;
    const at::Tensor spread = at::arange(count, at::kLong);
    // The middles of `count` equal pieces.
    positions.push_back(((spread * 2 + 1) * size).floor_divide(2 * count) + bounds[a]);
    cells.push_back(spread * 0 + static_cast<int64_t>(a));
  }
  return {at::cat(positions), at::cat(cells)};
}

// x (R, K) f32 of all keys before K -> (R, cells): sums over the keys of each cell.
at::Tensor sum_over_cells(const at::Tensor& x, const std::vector<int64_t>& bounds) {
  const auto cells = static_cast<int64_t>(bounds.size()) - 1;
  at::Tensor sums = at::zeros({x.size(0), cells}, at::kFloat);
  for (int64_t b = 0; b < cells; ++b) {
    const int64_t begin = std::min(bounds[b], x.size(1));
    const int64_t end = std::min(bounds[b + 1], x.size(1));
    if (begin >= end) break;
    sums.select(1, b).copy_(x.narrow(1, begin, end - begin).sum(1));
  }
  return sums;
}

}  // namespace

CellMaps cell_maps(const models::AttentionView& view, const CellOptions& given) {
  CellOptions options = given;
  const int64_t N = view.q.size(0);
  const int64_t H = view.q.size(1);
  if (options.end == 0) options.end = N;
  tensor::check_value(options.begin >= 0 && options.begin < options.end && options.end <= N,
                      "cell_maps",
                      "end",
                      options.end,
                      "a piece of the sequence");
  tensor::check_value(options.cells >= 1 && options.cells <= options.end - options.begin,
                      "cell_maps",
                      "cells",
                      options.cells,
                      "1 ... the tokens looked at");
  const std::vector<int64_t> bounds = bounds_of(options);
  const Queries queries = queries_of(bounds, options.queries_per_cell);
  const int64_t cells = options.cells;

  CellMaps maps{at::zeros({H, cells, cells}, at::kFloat), {}, {}};
  if (view.log_gate.defined()) {
    maps.decay = at::zeros({H, cells, cells}, at::kFloat);
    maps.log_decay = at::zeros({H, cells, cells}, at::kFloat);
  }
  at::Tensor pairs = at::zeros({cells, cells}, at::kFloat);  // that gates are shown of
  at::Tensor read = at::zeros({cells, 1}, at::kFloat);       // queries of a cell
  for_attention_rows(view, queries.positions, [&](const AttentionRows& rows) {
    const at::Tensor cell = queries.cells.narrow(0, rows.first, rows.queries.size(0));
    const auto add = [&](at::Tensor map, const at::Tensor& values) {
      map.index_add_(0, cell, sum_over_cells(values, bounds));
    };
    if (rows.head == 0) {
      read.index_add_(0, cell, at::zeros({cell.size(0), 1}, at::kFloat) + 1);
    }
    add(maps.attention[rows.head], at::softmax(rows.logits, -1));
    if (!rows.log_decay.defined()) return;
    const at::Tensor seen = rows.log_decay.isneginf().logical_not();
    if (rows.head == 0) add(pairs, seen.to(at::kFloat));
    add(maps.decay[rows.head], rows.log_decay.exp());
    add(maps.log_decay[rows.head], rows.log_decay.masked_fill(seen.logical_not(), 0));
  });
  maps.attention /= read;
  if (maps.decay.defined()) {
    pairs.clamp_min_(1);
    maps.decay /= pairs;
    maps.log_decay /= pairs;
  }
  return maps;
}

}  // namespace reynard::evaluation
