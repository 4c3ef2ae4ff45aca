#pragma once
// Which keys need not be read: the two rules by which a query block drops a prefix of the keys of
// bounded attention mass, the logit bound that QK-norm weights give, the bound of eviction, and
// statistics of what was dropped. Derivations: docs/attention.md.

#include "reynard/attention/attention.h"
#include "reynard/attention/pruning_limits.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace reynard::attention {

// U with |scale q.k| <= U when q and k are RMS-normalised over D and multiplied by their weights:
// scale D max_d |wq_d wk_d|; with RoPE the largest product over rotated pairs (d, d + D/2), since a
// rotation mixes the two. Includes the rounding of q and k to dtype.
//   q_weight (H, D) or (D) shared by all heads, k_weight (G, D) or (D)  ->  (H) f32
at::Tensor qk_norm_bound(const at::Tensor& q_weight,
                         const at::Tensor& k_weight,
                         int64_t num_heads,
                         double scale,
                         bool rotary,
                         at::ScalarType dtype);

// The same U for keys that a cache rounds to int8 (PageLayout::int8). A rounded key may be longer
// than the norm made it and point elsewhere, so products of weights of other dimensions count too
// (docs/attention.md).
at::Tensor qk_norm_bound_of_int8_keys(const at::Tensor& q_weight,
                                      const at::Tensor& k_weight,
                                      int64_t num_heads,
                                      double scale,
                                      bool rotary,
                                      at::ScalarType dtype);

// A key prefix may be evicted for good while log sum_j exp(-c_j) over all keys ever seen in it
// stays at or below this: every later query then gives it at most exp(log_tolerance) of its mass.
//   logit_bound: |scale q.k| <= bound of every later query; c_now: gate sum of the last position
//   that can never be rolled back
double eviction_limit(double logit_bound, double log_tolerance, double c_now);

// First key that each query block may see before pruning: (B, H, ceil(Tq/128)) i32.
at::Tensor first_visible(const at::Tensor& q, const KeyPart& part);

// Starts of the keys nearest to each query block, whose log-sum-exp bounds that of its rows from
// below: the diagonal tile and the key block before it, or the last 128 keys of a part that is not
// causal, from the begin of a key block on. (B, H, ceil(Tq/128)) i32.
at::Tensor nearest_starts(const at::Tensor& q, const KeyPart& part);

// What the tight rule is told of the rows, and what was measured on the way there. Where there is
// one part, that of heads whose keys are all kept (keeps_all_keys) may be anything.
struct RowFloors {
  // (B, H, Tq) f32 | f64: lower bound of each row's log-sum-exp over all parts, -inf for rows that
  // see nothing.
  at::Tensor rows;
  // Largest norms of blocks of queries (B, H, ceil(Tq/128)) and, of each part, of keys (B, G,
  // ceil(Tk/64)) f32, as bounds, and log sum_j exp(-c_j) of these (B, H, ceil(Tk/64)) f64;
  // undefined or missing where they have yet to be measured.
  at::Tensor query_norms{};
  std::vector<at::Tensor> key_norms{}, masses{};
};

// First key kept by each query block of each part; parts without sums keep everything. All parts
// together drop at most exp(log_pruning_tolerance) of any query's mass. Only the tight rule reads
// the floors. Returns per part (B, H, ceil(Tq/128)) i32.
std::vector<at::Tensor> pruned_starts(const at::Tensor& q,
                                      const at::Tensor& query_sums,
                                      std::span<const KeyPart> parts,
                                      const at::Tensor& logit_bound,
                                      const AttentionOptions& options,
                                      const RowFloors& floors);

// What pruning dropped (on the CPU, wherever start is), counted on tiles of 128 queries x 64 keys
// whatever the kernels use. Tiles that causality or first_key leave empty count nowhere.
struct AttentionStatistics {
  at::Tensor first_block;   // (B, H, ceil(Tq/128)) i32: first key block that each query block reads
  at::Tensor pruned_tiles;  // (H) f64: share of tiles that were dropped
  at::Tensor pruned_flops;  // (H) f64: the same, tiles at the edges weighed by their size
};
//   start     (B, H, ceil(Tq/128)) i32 as attention() returns it, of a causal part of Tk keys
//   first_key (B, Tq) i32 or undefined
AttentionStatistics attention_statistics(const at::Tensor& start,
                                         const at::Tensor& first_key,
                                         int64_t Tq,
                                         int64_t Tk);

}  // namespace reynard::attention
