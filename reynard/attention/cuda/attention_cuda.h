#pragma once
// The GPU's table of part_kernels.h: tensors become the plain pointers of problem.h, and every call
// is queued on the current stream. Which path multiplies (path.h) depends on GPU, dtype and shape.

#include "reynard/attention/cuda/problem.h"
#include "reynard/attention/part_kernels.h"

#include <span>
#include <vector>

namespace reynard::attention::cuda {

// x (B, T, heads, D) with a contiguous last dimension.
RowArray row_array(const at::Tensor& x);

ForwardPart forward_part(const PartArguments& arguments, at::ScalarType out_dtype);
PartFloors floors_of_part(const PartArguments& arguments, double log_tolerance);
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
DecodeOutput decode_pages(const DecodeArguments& arguments);
void write_pages(const PageWrite& tokens);
PageRows read_pages(const at::Tensor& keys,
                    const at::Tensor& values,
                    const at::Tensor& ids,
                    int64_t head_dim);

}  // namespace reynard::attention::cuda
