#pragma once
// What one attention layer did with a sequence, made small enough to look at: decay and attention
// averaged over cells.

#include "reynard/models/observer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

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

}  // namespace reynard::evaluation
