#pragma once
// The CPU kernels behind the operator: forward and backward of one key part. They are handed bias
// sums in f64 and form float(c_j - c_ref) per tile themselves; several parts are combined by the
// caller (parts.h) through their lse. Same bits for any thread count; memory O(T D).
//
// Tensors may be strided views (q, k, v of one fused projection): only the last dimension must be
// contiguous, and the caller sees to that. Keys that a query block must not see (first_key, start,
// causality) are neither read nor multiplied where a whole tile of them is skipped.

#include "reynard/attention/attention.h"

#include <ATen/core/Tensor.h>

namespace reynard::attention::cpu {

struct ForwardPart {
  at::Tensor out;  // (B, Tq, H, D) out_dtype, normalised within the part; 0 where nothing is seen
  at::Tensor lse;  // (B, H, Tq) f32; -inf where nothing is seen
};

// Everything that forward and backward of one part share.
struct PartArguments {
  at::Tensor q;           // (B, Tq, H, D) f32 | bf16 | f16, stride(-1) == 1
  at::Tensor query_sums;  // (B, H, Tq) f64, or undefined: no bias (part.sums is then undefined too)
  KeyPart part;           // k, v with stride(-1) == 1 and the dtype of q
  at::Tensor start;       // (B, H, ceil(Tq/128)) i32: keys before it are pruned; undefined: none
  double scale = 0;       // never 0 here
};

ForwardPart forward_part(const PartArguments& arguments, at::ScalarType out_dtype);

// lse alone, a third of the work: values are not read.
at::Tensor lse_of_part(const PartArguments& arguments);

struct BackwardPart {
  at::Tensor dq;           // (B, Tq, H, D) f32: parts are added in f32 before the final rounding
  at::Tensor dquery_sums;  // (B, H, Tq) f64, undefined without bias
  at::Tensor dk, dv;       // (B, Tk, G, D) dtype of q
  at::Tensor dsums;        // (B, H, Tk) f64, undefined without bias
};

//   dout  (B, Tq, H, D) dtype of q, stride(-1) == 1
//   lse   (B, H, Tq) f32: of all parts together
//   delta (B, H, Tq) f64: rowsum(dout * out) - dlse, with out of all parts together
BackwardPart backward_part(const PartArguments& arguments,
                           const at::Tensor& dout,
                           const at::Tensor& lse,
                           const at::Tensor& delta);

// rowsum(dout * out) in f64: rounding it to f32 would show in the gradient of the gates, which sums
// it over all rows.
//   dout, out (B, Tq, H, D) f32 | bf16 | f16, stride(-1) == 1  ->  (B, H, Tq) f64
at::Tensor row_products(const at::Tensor& dout, const at::Tensor& out);

}  // namespace reynard::attention::cpu
