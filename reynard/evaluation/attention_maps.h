#pragma once
// What one attention layer did with a sequence, made small enough to look at: decay and attention
// averaged over cells, and how much pruning skipped.

#include "reynard/models/observer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reynard::evaluation {

// Lower-triangular maps (H, cells, cells) f32 of a sequence of N tokens; cell (a, b) covers queries
// [a N / cells, (a+1) N / cells) and keys likewise.
struct CellMaps {
  at::Tensor attention;  // share of a query's attention, averaged over the cell's queries and
                         // summed over its keys
  at::Tensor decay;      // mean of exp(c_i - c_j) over the pairs j <= i; undefined without gates
};

// view: one layer of one sequence; the T x T matrix exists only for 64 queries at a time. cells
// must divide N.
CellMaps cell_maps(const models::AttentionView& view, int64_t cells);

// Share of the causal 128 x 64 tiles whose keys all lie before the first key kept, per head (H).
//   start (H, ceil(N/128)) i32
std::vector<double> pruned_tile_share(const at::Tensor& start, int64_t num_tokens);

}  // namespace reynard::evaluation
