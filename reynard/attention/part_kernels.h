#pragma once
// The interface between the operator and the kernels of one device: forward and backward of one key
// part, and the search for what may be pruned. The CPU's table is always there; the GPU's comes
// with libreynard_cuda.so when the first CUDA tensor arrives. Several parts are combined by the
// caller (parts.h) through their lse. Memory O(T D); the same bits in every run.
//
// Tensors may be strided views (q, k, v of one fused projection): only the last dimension must be
// contiguous, and the caller sees to that. Keys that a query block must not see (first_key, start,
// causality) are neither read nor multiplied where a whole tile of them is skipped.

#include "reynard/attention/attention.h"
#include "reynard/attention/page_kernels.h"
#include "reynard/attention/pruning.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace reynard::attention {

struct ForwardPart {
  at::Tensor out;  // (B, Tq, H, D) out_dtype, normalised within the part; 0 where nothing is seen
  at::Tensor lse;  // (B, H, Tq) f32; -inf where nothing is seen
};

struct PrunedForwardPart {
  at::Tensor out, lse;  // as above
  at::Tensor start;     // (B, H, ceil(Tq/128)) i32
};

// Everything that forward and backward of one part share.
struct PartArguments {
  at::Tensor q;           // (B, Tq, H, D) f32 | bf16 | f16, stride(-1) == 1
  at::Tensor query_sums;  // (B, H, Tq) f64, or undefined: no bias (part.sums is then undefined too)
  KeyPart part;           // k, v with stride(-1) == 1 and the dtype of q
  at::Tensor start;       // (B, H, ceil(Tq/128)) i32, contiguous: keys before it are pruned;
                          // undefined: none
  double scale = 0;       // never 0 here
};

struct BackwardPart {
  at::Tensor dq;           // (B, Tq, H, D) dq_dtype
  at::Tensor dquery_sums;  // (B, H, Tq) f64, undefined without bias
  at::Tensor dk, dv;       // (B, Tk, G, D) dtype of q
  at::Tensor dsums;        // (B, H, Tk) f64, undefined without bias
};

// Of RowFloors, for one part; of heads that were left out anything.
struct PartFloors {
  at::Tensor lse;  // (B, H, Tq) f32 | f64
  // Undefined where they were not measured.
  at::Tensor query_norms{}, key_norms{}, masses{};
};

struct PartKernels {
  ForwardPart (*forward)(const PartArguments& arguments, at::ScalarType out_dtype) = nullptr;

  // lse of the keys from nearest_starts() on, or of fewer near ones that each row sees, whatever
  // `start` is; values are not read. Heads whose keys are all kept at log_tolerance
  // (keeps_all_keys) may be left out; 0: none.
  PartFloors (*floors)(const PartArguments& arguments, double log_tolerance) = nullptr;

  // The forward of a part that is the only one and has sums, pruned by the tight rule as it goes;
  // null where a device has nothing better than floors, pruned_starts and forward one after the
  // other.
  //   arguments.start: where the nearest keys begin, whose lse is the rule's floor
  PrunedForwardPart (*forward_tight)(const PartArguments& arguments,
                                     const at::Tensor& logit_bound,
                                     const AttentionOptions& options) = nullptr;

  //   dout  (B, Tq, H, D) dtype of q, stride(-1) == 1
  //   lse   (B, H, Tq) f32: of all parts together
  //   delta (B, H, Tq) f64: rowsum(dout * out) - dlse, with out of all parts together
  //   dq_dtype: that of q, or f32 where parts are to be added before the final rounding
  BackwardPart (*backward)(const PartArguments& arguments,
                           const at::Tensor& dout,
                           const at::Tensor& lse,
                           const at::Tensor& delta,
                           at::ScalarType dq_dtype) = nullptr;

  // rowsum(dout * out) in f64: rounding it to f32 would show in the gradient of the gates, which
  // sums it over all rows.
  //   dout, out (B, Tq, H, D) f32 | bf16 | f16, stride(-1) == 1  ->  (B, H, Tq) f64
  at::Tensor (*row_products)(const at::Tensor& dout, const at::Tensor& out) = nullptr;

  // pruned_starts of pruning.h.
  std::vector<at::Tensor> (*pruned_starts)(const at::Tensor& q,
                                           const at::Tensor& query_sums,
                                           std::span<const KeyPart> parts,
                                           const at::Tensor& logit_bound,
                                           const AttentionOptions& options,
                                           const RowFloors& floors) = nullptr;

  // gate_sums of bias.h and its gradient; contiguous f32 | f64 gates (B, T, H), first_key (B, Tq)
  // contiguous or undefined.
  at::Tensor (*gate_sums)(const at::Tensor& log_gate) = nullptr;
  at::Tensor (*gate_sums_backward)(const at::Tensor& dsums,
                                   const at::Tensor& log_gate,
                                   const at::Tensor& first_key) = nullptr;

  // Of page_kernels.h: attention from pages in place, pages before a query's start are never read;
  // new tokens into their pages; and what pages of a pool hold.
  //   ids (n) i64, where the pages lie
  DecodeOutput (*decode)(const DecodeArguments& arguments) = nullptr;
  void (*write_pages)(const PageWrite& tokens) = nullptr;
  PageRows (*read_pages)(const at::Tensor& keys,
                         const at::Tensor& values,
                         const at::Tensor& ids,
                         int64_t head_dim) = nullptr;
};

// Of one part, to be written by its kernels.
BackwardPart empty_gradients(const PartArguments& arguments, at::ScalarType dq_dtype);

// The table of the device of t; opens libreynard_cuda.so for the first CUDA tensor. Throws
// reynard::Error for a device without kernels or a build without CUDA.
const PartKernels& part_kernels(const at::Tensor& t);

// Called once by each device's part of the library while it is loaded.
void register_part_kernels(at::DeviceType device, const PartKernels& kernels);

}  // namespace reynard::attention
