#pragma once
// Attention over several key parts from the kernels of one part: which keys are pruned, the
// combination of the parts by their lse, and the backward of every part with the final lse. This is
// the implementation behind the registered ops; the kernels are those of the device of q
// (part_kernels.h). It knows nothing of autograd.

#include "reynard/attention/attention.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace reynard::attention {

struct PartsForward {
  at::Tensor out;    // (B, Tq, H, D) dtype of q
  at::Tensor lse;    // (B, H, Tq) f32, f64 for f64 inputs
  at::Tensor start;  // (P, B, H, ceil(Tq/128)) i32: first key kept in each of the P parts
};

PartsForward forward_parts(const at::Tensor& q,
                           const at::Tensor& query_sums,
                           std::span<const KeyPart> parts,
                           const at::Tensor& logit_bound,
                           const AttentionOptions& options);

struct PartsBackward {
  at::Tensor dq;                   // (B, Tq, H, D) dtype of q
  at::Tensor dquery_sums;          // (B, H, Tq) f64, undefined when no part has sums
  std::vector<at::Tensor> dk, dv;  // per part (B, Tk, G, D) dtype of q
  std::vector<at::Tensor> dsums;   // per part (B, H, Tk) f64, undefined without bias
};

struct BackwardArguments {
  at::Tensor dout;           // (B, Tq, H, D), undefined: 0
  at::Tensor dlse;           // (B, H, Tq), undefined: 0
  at::Tensor q, query_sums;  // those of the forward, as parts and scale
  std::vector<KeyPart> parts;
  PartsForward forward;  // what it gave
  double scale = 0;
};

PartsBackward backward_parts(const BackwardArguments& arguments);

}  // namespace reynard::attention
