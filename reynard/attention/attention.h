#pragma once
// The operator the project exists for: softmax attention whose logits carry a separable bias,
//   s_ij = scale * q_i . k_j + c_i - c_j,
// which covers plain softmax (no sums), forgetting attention (sums of log gates), ALiBi and fixed
// gates. This header checks, dispatches and differentiates; the arithmetic is in reference.h, cpu/
// and cuda/. Derivations: docs/attention.md.
//
// Legend: B batch, Tq queries, Tk keys, H query heads, G key/value heads (G divides H), D head
// dimension.

#include "reynard/config/fields.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>

namespace reynard::attention {

constexpr int64_t kLargestHeadDim = 256;

// How much of the past a query block may skip (docs/attention.md, pruning).
enum class PruningRule {
  kTight,      // a prefix sum over key blocks bounds all that is left; floor from the diagonal tile
  kPublished,  // ACP: skip where c_i - c_j < -(2U + ln T) + ln(tolerance)
};
config::EnumNames<PruningRule> enum_names(PruningRule);
// Throws reynard::Error unless name is "tight" or "published".
PruningRule pruning_rule_named(std::string_view name);

// Keys that a query may see: its own sequence, a memory, another document, a shard.
struct KeyPart {
  at::Tensor k, v;       // (B, Tk, G, D)  f64 (reference only) | f32 | bf16 | f16
  at::Tensor sums;       // (B, H, Tk) f64 key sums c_j; undefined: no bias for this part
  at::Tensor first_key;  // (B, Tq) i32, non-decreasing: max(document start, left padding,
                         // i - window + 1); undefined: 0
  bool causal = true;    // queries are the last Tq positions of this part (Tq <= Tk); false: every
                         // key from first_key on (pruning then needs c_i <= c_j)
};

struct AttentionOptions {
  double scale = 0;                  // 0: 1/sqrt(D)
  double log_pruning_tolerance = 0;  // 0: off; -10: at most exp(-10) of a query's mass is dropped
  PruningRule rule = PruningRule::kTight;
};

struct AttentionOutput {
  at::Tensor out;  // (B, Tq, H, D) dtype of q
  // (B, H, Tq) f32 (f64 for f64 inputs), natural log, differentiable; -inf where a query sees
  // nothing
  at::Tensor lse;
  at::Tensor start;  // (B, H, ceil(Tq/128)) i32: first key kept, in keys, of the first part
};

// Attention of q over the union of several key parts as one autograd node. Queries that see nothing
// give out 0, lse -inf and gradients 0. Differentiable in q, query_sums and each part's k, v, sums.
//   q           (B, Tq, H, D)
//   query_sums  (B, H, Tq) f64, or undefined when no part has sums
//   logit_bound (H) or (B, H) f32: |scale q.k| <= bound (QK-norm weights); undefined: measured
//   norms
// Throws reynard::Error naming the argument for a wrong shape, dtype or value.
AttentionOutput attention(const at::Tensor& q,
                          const at::Tensor& query_sums,
                          std::span<const KeyPart> parts,
                          const at::Tensor& logit_bound,
                          const AttentionOptions& options = {});

// The common case: one causal part with forget gates.
//   log_gate (B, Tk, H) f32 | f64 <= 0: log of the gate that each token applies to the past;
//   undefined: softmax
AttentionOutput attention(const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& log_gate = {},
                          const at::Tensor& first_key = {},
                          const at::Tensor& logit_bound = {},
                          const AttentionOptions& options = {});

}  // namespace reynard::attention
