#include "reynard/attention/attention.h"

#include "reynard/attention/arguments.h"
#include "reynard/attention/operators.h"
#include "reynard/tensor/check.h"

#include <string>

namespace reynard::attention {

AttentionOutput attention(const at::Tensor& q,
                          const at::Tensor& query_sums,
                          std::span<const KeyPart> parts,
                          const at::Tensor& logit_bound,
                          const AttentionOptions& options) {
  check_parts("attention", q, query_sums, parts, logit_bound, options);
  auto [out, lse, start] = call_attention_parts(q, query_sums, parts, logit_bound, options);
  return {out, lse, start.select(0, 0)};
}

AttentionOutput attention(const at::Tensor& q,
                          const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& log_gate,
                          const at::Tensor& first_key,
                          const at::Tensor& logit_bound,
                          const AttentionOptions& options) {
  const KeyPart part = {k, v, {}, first_key, true};
  check_gated("attention", q, part, log_gate, logit_bound, options);
  auto [out, lse, start] = call_attention(q, part, log_gate, logit_bound, options);
  return {out, lse, start};
}

config::EnumNames<PruningRule> enum_names(PruningRule) {
  return {{PruningRule::kTight, "tight"}, {PruningRule::kPublished, "published"}};
}

PruningRule pruning_rule_named(std::string_view name) {
  if (const auto rule = config::value_named<PruningRule>(name)) return *rule;
  tensor::fail("attention", "rule", std::string(name), "tight or published");
}

}  // namespace reynard::attention
