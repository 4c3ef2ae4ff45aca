#pragma once
// The CPU's table of part_kernels.h. The kernels are handed bias sums in f64 and form
// float(c_j - c_ref) per tile themselves. Same bits for any thread count.

#include "reynard/attention/part_kernels.h"

#include <span>
#include <vector>

namespace reynard::attention::cpu {

ForwardPart forward_part(const PartArguments& arguments, at::ScalarType out_dtype);
PartFloors floors_of_part(const PartArguments& arguments, double log_tolerance);
PrunedForwardPart forward_tight(const PartArguments& arguments,
                                const at::Tensor& logit_bound,
                                const AttentionOptions& options);
BackwardPart backward_part(const PartArguments& arguments,
                           const at::Tensor& dout,
                           const at::Tensor& lse,
                           const at::Tensor& delta,
                           at::ScalarType dq_dtype);
at::Tensor row_products(const at::Tensor& dout, const at::Tensor& out);
std::vector<at::Tensor> pruned_starts(const at::Tensor& q,
                                      const at::Tensor& query_sums,
                                      std::span<const KeyPart> parts,
                                      const at::Tensor& logit_bound,
                                      const AttentionOptions& options,
                                      const RowFloors& floors);
at::Tensor gate_sums(const at::Tensor& log_gate);
at::Tensor gate_sums_backward(const at::Tensor& dsums,
                              const at::Tensor& log_gate,
                              const at::Tensor& first_key);

}  // namespace reynard::attention::cpu
