#pragma once
// Random inputs for the attention operator, from a fixed seed per call site, and what is expected
// of its results.

#include "reynard/attention/attention.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace reynard::test {

struct AttentionShape {
  int64_t B = 1, Tq = 1, Tk = 1, H = 1, G = 1, D = 64;
};

struct AttentionInputs {
  at::Tensor q, k, v;    // (B, Tq, H, D), (B, Tk, G, D), (B, Tk, G, D)
  at::Tensor log_gate;   // (B, Tk, H) f32: logsigmoid of N(gate_mean, 1)
  at::Tensor first_key;  // undefined
  at::Tensor dout;       // (B, Tq, H, D)
  at::Tensor dlse;       // (B, H, Tq) f32
};

AttentionInputs random_inputs(const AttentionShape& shape,
                              at::ScalarType dtype = at::kFloat,
                              uint64_t seed = 1,
                              double gate_mean = 2);

// The same values with all floating tensors in f64.
AttentionInputs in_double(const AttentionInputs& inputs);

// first_key (B, Tq) i32 for packed documents, left padding and a sliding window at once.
struct Visibility {
  std::vector<int64_t> documents = {};  // start positions of documents, ascending; empty: one
  std::vector<int64_t> padding = {};    // per batch row, padded positions at the left; empty: none
  int64_t window = 0;                   // a query sees itself and window - 1 keys before it; 0: off

  bool hides_keys() const { return !documents.empty() || !padding.empty() || window > 0; }
};
at::Tensor first_keys(const AttentionShape& shape, const Visibility& visibility);

struct AttentionGradients {
  at::Tensor out, lse;
  at::Tensor dq, dk, dv, dlog_gate;
};

// Forward and backward of the operator.
AttentionGradients run_attention(const AttentionInputs& inputs,
                                 const attention::AttentionOptions& options = {},
                                 const at::Tensor& logit_bound = {});

// The same through the definition: for f64 by autograd (exact), else by the naive formulas in the
// dtype of the inputs. Keys before start are dropped.
AttentionGradients run_reference(const AttentionInputs& inputs,
                                 double scale = 0,
                                 const at::Tensor& start = {});

// Expects out, lse and every gradient of the operator to be as near to the f64 definition as twice
// the naive formulas are (within_budget). start: the keys that options prune.
void expect_within_budget(const AttentionInputs& inputs,
                          const attention::AttentionOptions& options = {},
                          const at::Tensor& start = {});

// An ulp of f32 of the largest that the partial sums of q.k (|q| |k|, however small the product
// itself) and lse can be: what rounding logits is as an absolute error of lse and a relative one of
// every weight. scale 0: 1/sqrt(D).
double logit_rounding(const at::Tensor& q,
                      const at::Tensor& k,
                      const at::Tensor& lse,
                      double scale = 0);

// The largest norm of a row: of its last dimension.
double longest_row(const at::Tensor& rows);

// Expects equal bits; those of dlog_gate where both have one.
void expect_same_bits(const AttentionGradients& actual, const AttentionGradients& expected);

}  // namespace reynard::test
