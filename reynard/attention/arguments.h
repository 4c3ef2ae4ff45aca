#pragma once
// The checks of the attention operator's arguments, all in one place, before any work. Messages
// name the operation, the argument, what it is and what it must be.

#include "reynard/attention/attention.h"

#include <span>
#include <string_view>

namespace reynard::attention {

// True when REYNARD_DEBUG_CHECKS=1 is set in the environment and t has values: they are then
// checked too (a pass over the tensor), not only shapes and dtypes. What torch.compile traces with
// has none; its graph checks them when it runs.
bool has_values_to_check(const at::Tensor& t);

void check_options(std::string_view op, const AttentionOptions& options);

void check_parts(std::string_view op,
                 const at::Tensor& q,
                 const at::Tensor& query_sums,
                 std::span<const KeyPart> parts,
                 const at::Tensor& logit_bound,
                 const AttentionOptions& options);

// The common case: one causal part, whose sums are those of log_gate.
void check_gated(std::string_view op,
                 const at::Tensor& q,
                 const KeyPart& part,
                 const at::Tensor& log_gate,
                 const at::Tensor& logit_bound,
                 const AttentionOptions& options);

}  // namespace reynard::attention
