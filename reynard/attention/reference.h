#pragma once
// The definition of the operator: O(Tq Tk) memory, plain ATen, any floating dtype, differentiable
// by autograd. Every kernel is compared with it; f64 tensors are computed by it. With bf16 or f16
// inputs it is the naive formula of that dtype: logits and softmax in f32, weights rounded to the
// dtype before they multiply the values.

#include "reynard/attention/part_kernels.h"

#include <ATen/core/Tensor.h>

#include <span>

namespace reynard::attention {

struct ReferenceOutput {
  at::Tensor out;  // (B, Tq, H, D) dtype of q
  at::Tensor lse;  // (B, H, Tq) f64 for f64 inputs, else f32
};

// scale 0 means 1/sqrt(D). starts: per part (B, H, ceil(Tq/128)) i32 or undefined, keys before it
// are dropped (the pruned function); empty: nothing is pruned.
ReferenceOutput reference_attention(const at::Tensor& q,
                                    const at::Tensor& query_sums,
                                    std::span<const KeyPart> parts,
                                    double scale = 0,
                                    std::span<const at::Tensor> starts = {});

// Which keys of a part each query sees: (B, 1 or H, Tq, Tk) bool.
at::Tensor visible_keys(const KeyPart& part, int64_t Tq, const at::Tensor& start);

// scale q.k + c_i - c_j of one part, -inf where not visible: (B, H, Tq, Tk) f64 or f32.
at::Tensor reference_logits(const at::Tensor& q,
                            const at::Tensor& query_sums,
                            const KeyPart& part,
                            double scale,
                            const at::Tensor& start);

// Gradients of one part by their formulas (docs/attention.md), for dtypes that no kernel takes.
struct ReferenceGradients {
  at::Tensor dq;           // (B, Tq, H, D) f64 or f32
  at::Tensor dquery_sums;  // (B, H, Tq) f64, undefined without bias
  at::Tensor dk, dv;       // (B, Tk, G, D) f64 or f32
  at::Tensor dsums;        // (B, H, Tk) f64, undefined without bias
};
//   lse, delta (B, H, Tq): of all parts together; delta = rowsum(dout * out) - dlse
ReferenceGradients reference_backward_part(const PartArguments& arguments,
                                           const at::Tensor& dout,
                                           const at::Tensor& lse,
                                           const at::Tensor& delta);

}  // namespace reynard::attention
