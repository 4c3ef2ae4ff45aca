#pragma once
// One query per sequence against pages in place (split-KV decode): the keys of a sequence are cut
// into fixed runs of pages, each run is attended by itself, and the runs are combined in order, so
// the bits do not depend on the thread count. Pages before a query's start are never read.

#include "reynard/attention/attention.h"

#include <ATen/core/Tensor.h>

namespace reynard::attention::cpu {

// S sequences, P pages in the pool, N the longest page table.
struct DecodeArguments {
  at::Tensor q;            // (S, H, D) contiguous
  at::Tensor keys;         // (P, 64, D) dtype of q
  at::Tensor values;       // (P, 64, D)
  at::Tensor sums;         // (P, H/G, 64) f64, or undefined: no bias
  at::Tensor norms;        // (P) f32, needed for pruning without logit_bound
  at::Tensor masses;       // (P, H/G) f64: log sum_j exp(-c_j), needed for pruning
  at::Tensor page_table;   // (S, G, N) i32; -1: evicted
  at::Tensor lengths;      // (S) i64: the query stands at position lengths - 1
  at::Tensor first_key;    // (S) i32 or undefined
  at::Tensor logit_bound;  // (H) f32 or undefined
  // What eviction already dropped counts against the same tolerance; undefined: nothing evicted.
  at::Tensor evicted_masses;  // (S, H) f64
  at::Tensor evicted_norms;   // (S, G) f32
  AttentionOptions options;   // scale never 0 here
};

struct DecodeOutput {
  at::Tensor out;    // (S, H, D) dtype of q
  at::Tensor lse;    // (S, H) f32
  at::Tensor start;  // (S, H) i32: first position read
};

DecodeOutput decode(const DecodeArguments& arguments);

}  // namespace reynard::attention::cpu
