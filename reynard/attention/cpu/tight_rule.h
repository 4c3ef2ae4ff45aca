#pragma once
// The tight pruning rule for one key part, asked for one query block at a time: whoever goes
// through the nearest keys of a block first knows the floors of its rows and goes on to where the
// block's keys begin. pruned_starts of pruning.h is the same rule for all blocks and several parts.

#include "reynard/attention/attention.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace reynard::attention::cpu {

struct TightRule {
  at::Tensor starts;  // (B, H, ceil(Tq/128)) i32: first key kept; of blocks not found yet, seen
  // Finds the start of query block m of head h; several threads may find those of several blocks.
  //   floors (up to 128 rows): lower bounds of their log-sum-exp, -inf for rows that see nothing
  std::function<void(int64_t b, int64_t h, int64_t m, const float* floors)> find_start;
};

// Arguments as of pruned_starts; the part has sums of gates and outlives the rule.
TightRule tight_rule(const at::Tensor& q,
                     const at::Tensor& query_sums,
                     const KeyPart& part,
                     const at::Tensor& logit_bound,
                     const AttentionOptions& options);

}  // namespace reynard::attention::cpu
