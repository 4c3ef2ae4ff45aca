#pragma once
// What one attention layer did with a sequence, made small enough to look at: forget-gate products,
// their logarithm and attention averaged over cells, whatever the length.

#include "reynard/models/observer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace reynard::evaluation {

struct CellOptions {
  int64_t cells = 32;            // rows and columns of the maps; at most the tokens looked at
  int64_t begin = 0;             // queries and keys [begin, end) are looked at
  int64_t end = 0;               // 0: all
  int64_t queries_per_cell = 0;  // at most this many, evenly spread, are read; 0: all
};

// Lower-triangular maps (H, cells, cells) f32 of W tokens; cell (a, b) covers queries
// [a W / cells, (a+1) W / cells) and keys likewise.
struct CellMaps {
  at::Tensor attention;  // share of a query's attention, averaged over the cell's queries and
                         // summed over its keys; keys before `begin` take their share unseen
  at::Tensor decay;      // F: mean of exp(c_i - c_j) over the pairs that are seen; undefined
                         // without gates
  at::Tensor log_decay;  // D: mean of c_i - c_j likewise, in nats; 0 where no pair is seen
};

// view: one layer of one sequence, on the CPU.
CellMaps cell_maps(const models::AttentionView& view, const CellOptions& options);

}  // namespace reynard::evaluation
