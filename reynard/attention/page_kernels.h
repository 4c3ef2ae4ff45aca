#pragma once
// What the kernels of one device are handed to read and to write pages of the cache (cache.h). The
// functions are entries of the device's table (part_kernels.h).

#include "reynard/attention/attention.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace reynard::attention {

// A sequence as its cache holds it in host memory: tensors of these numbers would cost a decoded
// token more than its local heads.
struct HostSequence {
  std::vector<const int32_t*> pages;  // (G) lists of page ids, -1: evicted
  std::vector<int64_t> num_evicted;   // (G) of these, all in front
  int64_t length = 0;                 // the query stands at position length - 1
  int64_t first_key = 0;
  const double* evicted_masses = nullptr;  // (H), or null: nothing evicted
  const float* evicted_norms = nullptr;    // (G)
};

// Keys and values of pages are rows, (P, 64, D), on a GPU and where they come from plain tensors; a
// cache in host memory keeps them as words (cpu/page_words.h), in tensors of four dimensions: keys
// (P, D'/n, 64, n), values (P, 64/n, D', n).
inline bool are_rows(const at::Tensor& pages) {
  return pages.dim() == 3;
}

// One query per sequence. S sequences, P pages in the pool, N the longest page table; all on one
// device.
struct DecodeArguments {
  at::Tensor q;       // (S, H, D) contiguous
  at::Tensor keys;    // (P, 64, D) as rows or words; dtype of q, or int8 with scales
  at::Tensor values;  // likewise
  at::Tensor scales;  // (P, 2, 64) f32 of each row of keys and of values, or undefined
  at::Tensor sums;    // (P, H/G, 64) f64, or undefined: no bias
  at::Tensor norms;   // (P) f32, needed for pruning without logit_bound
  at::Tensor masses;  // (P, H/G) f64: log sum_j exp(-c_j), needed for pruning
  // The sequences: of caches on the CPU as they lie there, else as the tensors that follow.
  std::vector<HostSequence> sequences;
  at::Tensor page_table;   // (S, G, N) i32: page ids, -1: evicted
  at::Tensor lengths;      // (S) i64: the query stands at position lengths - 1
  at::Tensor first_key;    // (S) i32 or undefined
  at::Tensor logit_bound;  // (H) f32 or undefined, with both
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

// The newest T tokens of each of S sequences into their pages; all on one device. The sums of gates
// run on from those of the token before; a page whose first slot is written starts with empty
// bounds.
struct PageWrite {
  at::Tensor keys, values, sums, norms, masses;  // the pool's
  at::Tensor scales;                             // of int8 pages, or undefined
  // (S, G, N) i32, beginning at or before the page of the token before the new ones; -1: evicted,
  // not written.
  at::Tensor page_table;
  at::Tensor lengths;     // (S) i64: tokens in these pages, the new ones included; 0: not written
  at::Tensor k, v;        // (S T, G, D) contiguous, one sequence after the other
  at::Tensor log_gate;    // (S T, H) f32 contiguous, or undefined: log 1
  at::Tensor token_sums;  // (S, H, T) f64 to be written as they are, or undefined: from log_gate

  int64_t num_sequences() const { return lengths.size(0); }
  int64_t num_tokens() const { return k.size(0) / num_sequences(); }  // T
};

// Some pages of the pool as rows.
struct PageRows {
  at::Tensor keys, values;  // (n, 64, D) dtype of the pages
};

}  // namespace reynard::attention
