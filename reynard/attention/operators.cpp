#include "reynard/attention/operators.h"

#include "reynard/attention/arguments.h"
#include "reynard/attention/bias.h"
#include "reynard/attention/parts.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace reynard::attention {

namespace {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalTensors = c10::List<std::optional<at::Tensor>>;
// dq, dquery_sums, dk, dv, dsums; gradients of absent sums are empty tensors.
using BackwardResult = std::tuple<at::Tensor,
                                  at::Tensor,
                                  std::vector<at::Tensor>,
                                  std::vector<at::Tensor>,
                                  std::vector<at::Tensor>>;
constexpr int64_t kStartBlock = 128;  // queries that share one entry of start

at::Tensor tensor_of(const OptionalTensor& t) {
  return t.value_or(at::Tensor());
}
OptionalTensor optional_of(const at::Tensor& t) {
  return t.defined() ? OptionalTensor(t) : OptionalTensor();
}

std::vector<KeyPart> parts_of(at::TensorList k,
                              at::TensorList v,
                              const OptionalTensors& sums,
                              const OptionalTensors& first_key,
                              c10::ArrayRef<int64_t> causal) {
  const auto same_length = [&](std::string_view arg, size_t length) {
    tensor::check_value(length == k.size(),
                        "attention_parts",
                        std::string("length of ") + std::string(arg),
                        length,
                        "the length of k: " + std::to_string(k.size()));
  };
  same_length("v", v.size());
  same_length("sums", sums.size());
  same_length("first_key", first_key.size());
  same_length("causal", causal.size());
  std::vector<KeyPart> parts(k.size());
  for (size_t p = 0; p < k.size(); ++p) {
    const std::optional<at::Tensor> part_sums = sums.get(p);
    const std::optional<at::Tensor> part_first = first_key.get(p);
    parts[p] = {k[p], v[p], tensor_of(part_sums), tensor_of(part_first), causal[p] != 0};
  }
  return parts;
}

AttentionOptions options_of(double scale, double log_pruning_tolerance, std::string_view rule) {
  return {scale, log_pruning_tolerance, pruning_rule_from_string(rule)};
}

ForwardResult attention_parts_cpu(const at::Tensor& q,
                                  const OptionalTensor& query_sums,
                                  at::TensorList k,
                                  at::TensorList v,
                                  const OptionalTensors& sums,
                                  const OptionalTensors& first_key,
                                  c10::ArrayRef<int64_t> causal,
                                  const OptionalTensor& logit_bound,
                                  double scale,
                                  double log_pruning_tolerance,
                                  std::string_view rule) {
  const std::vector<KeyPart> parts = parts_of(k, v, sums, first_key, causal);
  const AttentionOptions options = options_of(scale, log_pruning_tolerance, rule);
  check_parts("attention", q, tensor_of(query_sums), parts, tensor_of(logit_bound), options);
  PartsForward result =
      forward_parts(q, tensor_of(query_sums), parts, tensor_of(logit_bound), options);
  return {result.out, result.lse, result.start};
}

ForwardResult attention_parts_meta(const at::Tensor& q,
                                   const OptionalTensor& /*query_sums*/,
                                   at::TensorList k,
                                   at::TensorList /*v*/,
                                   const OptionalTensors& /*sums*/,
                                   const OptionalTensors& /*first_key*/,
                                   c10::ArrayRef<int64_t> /*causal*/,
                                   const OptionalTensor& /*logit_bound*/,
                                   double /*scale*/,
                                   double /*log_pruning_tolerance*/,
                                   std::string_view /*rule*/) {
  const auto sizes = q.sym_sizes();
  const c10::SymInt num_blocks = (sizes[1] + (kStartBlock - 1)) / kStartBlock;
  const at::ScalarType lse_dtype = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {q.new_empty_symint(sizes),
          q.new_empty_symint({sizes[0], sizes[2], sizes[1]}, q.options().dtype(lse_dtype)),
          q.new_empty_symint(
              {c10::SymInt(static_cast<int64_t>(k.size())), sizes[0], sizes[2], num_blocks},
              q.options().dtype(at::kInt))};
}

BackwardResult attention_parts_backward_cpu(const OptionalTensor& dout,
                                            const OptionalTensor& dlse,
                                            const at::Tensor& q,
                                            const OptionalTensor& query_sums,
                                            at::TensorList k,
                                            at::TensorList v,
                                            const OptionalTensors& sums,
                                            const OptionalTensors& first_key,
                                            c10::ArrayRef<int64_t> causal,
                                            const at::Tensor& out,
                                            const at::Tensor& lse,
                                            const at::Tensor& start,
                                            double scale) {
  const std::vector<KeyPart> parts = parts_of(k, v, sums, first_key, causal);
  PartsBackward result = backward_parts(
      tensor_of(dout), tensor_of(dlse), q, tensor_of(query_sums), parts, {out, lse, start}, scale);
  const auto absent = [&](at::Tensor& t) {
    if (!t.defined()) t = q.new_empty({0}, q.options().dtype(at::kDouble));
  };
  absent(result.dquery_sums);
  for (at::Tensor& t : result.dsums) absent(t);
  return {result.dq, result.dquery_sums, result.dk, result.dv, result.dsums};
}

BackwardResult attention_parts_backward_meta(const OptionalTensor& /*dout*/,
                                             const OptionalTensor& /*dlse*/,
                                             const at::Tensor& q,
                                             const OptionalTensor& query_sums,
                                             at::TensorList k,
                                             at::TensorList v,
                                             const OptionalTensors& sums,
                                             const OptionalTensors& /*first_key*/,
                                             c10::ArrayRef<int64_t> /*causal*/,
                                             const at::Tensor& /*out*/,
                                             const at::Tensor& /*lse*/,
                                             const at::Tensor& /*start*/,
                                             double /*scale*/) {
  const auto f64 = q.options().dtype(at::kDouble);
  std::vector<at::Tensor> dk, dv, dsums;
  bool any_sums = false;
  for (size_t p = 0; p < k.size(); ++p) {
    dk.push_back(k[p].new_empty_symint(k[p].sym_sizes()));
    dv.push_back(v[p].new_empty_symint(v[p].sym_sizes()));
    const std::optional<at::Tensor> part_sums = sums.get(p);
    any_sums = any_sums || part_sums.has_value();
    dsums.push_back(part_sums ? q.new_empty_symint(part_sums->sym_sizes(), f64)
                              : q.new_empty({0}, f64));
  }
  const at::Tensor dquery_sums = any_sums && query_sums
                                     ? q.new_empty_symint(query_sums->sym_sizes(), f64)
                                     : q.new_empty({0}, f64);
  return {q.new_empty_symint(q.sym_sizes()), dquery_sums, dk, dv, dsums};
}

template <class Signature>
auto find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Differentiates attention_parts. The tensors with gradients travel as one flat list:
// q, query_sums (when defined), then k, v and sums (when defined) of every part.
struct AttentionParts : torch::autograd::Function<AttentionParts> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  struct Arguments {
    at::Tensor q;
    OptionalTensor query_sums;
    std::vector<at::Tensor> k, v;
    OptionalTensors sums, first_key;
    std::vector<int64_t> causal;
    OptionalTensor logit_bound;
    double scale = 0;
    double log_pruning_tolerance = 0;
    std::string rule;

    Variables differentiable() const {
      Variables list = {q};
      if (query_sums) list.push_back(*query_sums);
      for (size_t p = 0; p < k.size(); ++p) {
        list.push_back(k[p]);
        list.push_back(v[p]);
        if (const OptionalTensor part_sums = sums.get(p)) list.push_back(*part_sums);
      }
      return list;
    }
  };

  static Variables forward(Context* ctx, at::TensorList variables, const Arguments& a) {
    static const auto op = find_op<decltype(attention_parts_cpu)>("reynard::attention_parts");
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [out, lse, start] = op.call(a.q,
                                     a.query_sums,
                                     a.k,
                                     a.v,
                                     a.sums,
                                     a.first_key,
                                     a.causal,
                                     a.logit_bound,
                                     a.scale,
                                     a.log_pruning_tolerance,
                                     a.rule);
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({start});
    Variables saved = variables.vec();
    for (size_t p = 0; p < a.k.size(); ++p) {
      const OptionalTensor part_first = a.first_key.get(p);
      saved.push_back(tensor_of(part_first));
    }
    saved.insert(saved.end(), {out, lse, start});
    ctx->save_for_backward(saved);
    c10::List<bool> has_sums;
    for (size_t p = 0; p < a.k.size(); ++p) has_sums.push_back(a.sums.get(p).has_value());
    ctx->saved_data["has_sums"] = has_sums;
    ctx->saved_data["has_query_sums"] = a.query_sums.has_value();
    ctx->saved_data["causal"] = a.causal;
    ctx->saved_data["scale"] = a.scale;
    return {out, lse, start};
  }

  static Variables backward(Context* ctx, const Variables& grads) {
    const Variables saved = ctx->get_saved_variables();
    const auto has_sums = ctx->saved_data["has_sums"].toBoolList();
    const bool has_query_sums = ctx->saved_data["has_query_sums"].toBool();
    const size_t num_parts = has_sums.size();
    auto next = saved.begin();
    const at::Tensor q = *next++;
    const OptionalTensor query_sums = has_query_sums ? OptionalTensor(*next++) : OptionalTensor();
    std::vector<at::Tensor> k, v;
    OptionalTensors sums, first_key;
    for (size_t p = 0; p < num_parts; ++p) {
      k.push_back(*next++);
      v.push_back(*next++);
      sums.push_back(has_sums.get(p) ? OptionalTensor(*next++) : OptionalTensor());
    }
    for (size_t p = 0; p < num_parts; ++p) first_key.push_back(optional_of(*next++));
    static const auto op =
        find_op<decltype(attention_parts_backward_cpu)>("reynard::attention_parts_backward");
    auto [dq, dquery_sums, dk, dv, dsums] = op.call(optional_of(grads[0]),
                                                    optional_of(grads[1]),
                                                    q,
                                                    query_sums,
                                                    k,
                                                    v,
                                                    sums,
                                                    first_key,
                                                    ctx->saved_data["causal"].toIntVector(),
                                                    next[0],
                                                    next[1],
                                                    next[2],
                                                    ctx->saved_data["scale"].toDouble());
    // Query sums without sums of any part have no effect.
    bool any_sums = false;
    Variables result = {dq};
    for (size_t p = 0; p < num_parts; ++p) any_sums = any_sums || has_sums.get(p);
    if (has_query_sums) result.push_back(any_sums ? dquery_sums : at::Tensor());
    for (size_t p = 0; p < num_parts; ++p) {
      result.push_back(dk[p]);
      result.push_back(dv[p]);
      if (has_sums.get(p)) result.push_back(dsums[p]);
    }
    result.emplace_back();  // Arguments
    return result;
  }
};

ForwardResult attention_parts_autograd(const at::Tensor& q,
                                       const OptionalTensor& query_sums,
                                       at::TensorList k,
                                       at::TensorList v,
                                       const OptionalTensors& sums,
                                       const OptionalTensors& first_key,
                                       c10::ArrayRef<int64_t> causal,
                                       const OptionalTensor& logit_bound,
                                       double scale,
                                       double log_pruning_tolerance,
                                       std::string_view rule) {
  const AttentionParts::Arguments arguments = {q,
                                               query_sums,
                                               k.vec(),
                                               v.vec(),
                                               sums,
                                               first_key,
                                               causal.vec(),
                                               logit_bound,
                                               scale,
                                               log_pruning_tolerance,
                                               std::string(rule)};
  const auto variables = arguments.differentiable();
  const auto results = AttentionParts::apply(at::TensorList(variables), arguments);
  return {results[0], results[1], results[2]};
}

// The common case is a composition: sums of the gates, then one causal part.
ForwardResult attention_composite(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const at::Tensor& v,
                                  const OptionalTensor& log_gate,
                                  const OptionalTensor& first_key,
                                  const OptionalTensor& logit_bound,
                                  double scale,
                                  double log_pruning_tolerance,
                                  std::string_view rule) {
  const AttentionOptions options = options_of(scale, log_pruning_tolerance, rule);
  const auto symbolic = [](const at::Tensor& t) {
    return t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  };
  if (!symbolic(q) && !symbolic(k)) {
    check_gated("attention",
                q,
                k,
                v,
                tensor_of(log_gate),
                tensor_of(first_key),
                tensor_of(logit_bound),
                options);
  }
  KeyPart part = {k, v, {}, tensor_of(first_key), true};
  at::Tensor query_sums;
  if (log_gate) {
    part.sums = gate_sums(*log_gate, part.first_key);
    const c10::SymInt Tq = q.sym_size(1), Tk = k.sym_size(1);
    query_sums = part.sums.slice_symint(2, Tk - Tq, Tk);
  }
  auto [out, lse, start] =
      call_attention_parts(q, query_sums, {&part, 1}, tensor_of(logit_bound), options);
  return {out, lse, start.select(0, 0)};
}

TORCH_LIBRARY(reynard, m) {
  m.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor? log_gate=None, Tensor? first_key=None, "
      "Tensor? logit_bound=None, *, float scale=0., float log_pruning_tolerance=0., "
      "str rule=\"tight\") -> (Tensor out, Tensor lse, Tensor start)");
  m.def(
      "attention_parts(Tensor q, Tensor? query_sums, Tensor[] k, Tensor[] v, Tensor?[] sums, "
      "Tensor?[] first_key, int[] causal, Tensor? logit_bound=None, *, float scale=0., "
      "float log_pruning_tolerance=0., str rule=\"tight\") "
      "-> (Tensor out, Tensor lse, Tensor start)");
  m.def(
      "attention_parts_backward(Tensor? dout, Tensor? dlse, Tensor q, Tensor? query_sums, "
      "Tensor[] k, Tensor[] v, Tensor?[] sums, Tensor?[] first_key, int[] causal, Tensor out, "
      "Tensor lse, Tensor start, float scale) "
      "-> (Tensor dq, Tensor dquery_sums, Tensor[] dk, Tensor[] dv, Tensor[] dsums)");
}
TORCH_LIBRARY_IMPL(reynard, CPU, m) {
  m.impl("attention", attention_composite);
  m.impl("attention_parts", attention_parts_cpu);
  m.impl("attention_parts_backward", attention_parts_backward_cpu);
}
TORCH_LIBRARY_IMPL(reynard, Meta, m) {
  m.impl("attention", attention_composite);
  m.impl("attention_parts", attention_parts_meta);
  m.impl("attention_parts_backward", attention_parts_backward_meta);
}
TORCH_LIBRARY_IMPL(reynard, Autograd, m) {
  m.impl("attention", attention_composite);
  m.impl("attention_parts", attention_parts_autograd);
  m.impl("attention_parts_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

ForwardResult call_attention_parts(const at::Tensor& q,
                                   const at::Tensor& query_sums,
                                   std::span<const KeyPart> parts,
                                   const at::Tensor& logit_bound,
                                   const AttentionOptions& options) {
  static const auto op = find_op<decltype(attention_parts_cpu)>("reynard::attention_parts");
  std::vector<at::Tensor> k, v;
  std::vector<int64_t> causal;
  OptionalTensors sums, first_key;
  for (const KeyPart& part : parts) {
    k.push_back(part.k);
    v.push_back(part.v);
    sums.push_back(optional_of(part.sums));
    first_key.push_back(optional_of(part.first_key));
    causal.push_back(part.causal ? 1 : 0);
  }
  return op.call(q,
                 optional_of(query_sums),
                 k,
                 v,
                 sums,
                 first_key,
                 causal,
                 optional_of(logit_bound),
                 options.scale,
                 options.log_pruning_tolerance,
                 to_string(options.rule));
}

ForwardResult call_attention(const at::Tensor& q,
                             const at::Tensor& k,
                             const at::Tensor& v,
                             const at::Tensor& log_gate,
                             const at::Tensor& first_key,
                             const at::Tensor& logit_bound,
                             const AttentionOptions& options) {
  static const auto op = find_op<decltype(attention_composite)>("reynard::attention");
  return op.call(q,
                 k,
                 v,
                 optional_of(log_gate),
                 optional_of(first_key),
                 optional_of(logit_bound),
                 options.scale,
                 options.log_pruning_tolerance,
                 to_string(options.rule));
}

}  // namespace reynard::attention
