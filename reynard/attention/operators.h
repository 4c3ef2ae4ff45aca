#pragma once
// The registered operators as C++ functions: each call goes through the dispatcher, hence through
// autograd, tracing and Meta tensors as from Python. Schemas and kernels: operators.cpp.

#include "reynard/attention/attention.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <tuple>

namespace reynard::attention {

using ForwardResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // out, lse, start

// reynard::attention_parts; start is (P, B, H, ceil(Tq/128)).
ForwardResult call_attention_parts(const at::Tensor& q,
                                   const at::Tensor& query_sums,
                                   std::span<const KeyPart> parts,
                                   const at::Tensor& logit_bound,
                                   const AttentionOptions& options);

// reynard::attention, whose sums are those of log_gate: part is causal and has none.
ForwardResult call_attention(const at::Tensor& q,
                             const KeyPart& part,
                             const at::Tensor& log_gate,
                             const at::Tensor& logit_bound,
                             const AttentionOptions& options);

}  // namespace reynard::attention
