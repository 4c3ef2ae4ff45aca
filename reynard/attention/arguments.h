#pragma once
// The checks of the attention operator's arguments, all in one place, before any work. Messages
// name the operation, the argument, what it is and what it must be.

#include "reynard/attention/attention.h"

#include <functional>
#include <span>
#include <string_view>

namespace reynard::attention {

// True when REYNARD_DEBUG_CHECKS=1 is set in the environment and t has values: they are then
// checked too (a pass over the tensor), not only shapes and dtypes. What torch.compile traces with
// has none; its graph checks them when it runs.
bool has_values_to_check(const at::Tensor& t);

// Throws Error "op: arg at [0, 3] = 9; expected requirement" for the first value of t that is not
// allowed (of t's shape, bool), where t has values to check.
void check_values(std::string_view op,
                  std::string_view arg,
                  const at::Tensor& t,
                  const std::function<at::Tensor(const at::Tensor&)>& allowed,
                  std::string_view requirement);

// first_key (B, Tq) i32, undefined or >= 0 and non-decreasing along a row: its values alone.
void check_first_key_values(std::string_view op, std::string_view arg, const at::Tensor& first_key);

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
