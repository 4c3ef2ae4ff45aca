#include "reynard/attention/operators.h"

#include "reynard/attention/arguments.h"
#include "reynard/attention/bias.h"
#include "reynard/attention/parts.h"
#include "reynard/attention/pruning_limits.h"
#include "reynard/tensor/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
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

at::Tensor tensor_of(const OptionalTensor& t) {
  return t.value_or(at::Tensor());
}
OptionalTensor optional_of(const at::Tensor& t) {
  return t.defined() ? OptionalTensor(t) : OptionalTensor();
}

// Key parts as an op takes them: one list per field.
struct PartLists {
  std::vector<at::Tensor> k, v;
  OptionalTensors sums, first_key;
  std::vector<int64_t> causal;
};

PartLists lists_of(std::span<const KeyPart> parts) {
  PartLists lists;
  for (const KeyPart& part : parts) {
    lists.k.push_back(part.k);
    lists.v.push_back(part.v);
    lists.sums.push_back(optional_of(part.sums));
    lists.first_key.push_back(optional_of(part.first_key));
    lists.causal.push_back(part.causal ? 1 : 0);
  }
  return lists;
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

bool any_sums(std::span<const KeyPart> parts) {
  return std::ranges::any_of(parts, [](const KeyPart& part) { return part.sums.defined(); });
}

// A kernel takes its arguments as one struct; the op's own argument list stands in `unpacked_*`
// only.
struct ForwardArguments {
  at::Tensor q, query_sums;
  std::vector<KeyPart> parts;
  at::Tensor logit_bound;
  AttentionOptions options;
};

template <ForwardResult (*kKernel)(const ForwardArguments&)>
ForwardResult unpacked_forward(const at::Tensor& q,
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
  return kKernel({q,
                  tensor_of(query_sums),
                  parts_of(k, v, sums, first_key, causal),
                  tensor_of(logit_bound),
                  {scale, log_pruning_tolerance, pruning_rule_named(rule)}});
}

template <BackwardResult (*kKernel)(const BackwardArguments&)>
BackwardResult unpacked_backward(const OptionalTensor& dout,
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
  return kKernel({tensor_of(dout),
                  tensor_of(dlse),
                  q,
                  tensor_of(query_sums),
                  parts_of(k, v, sums, first_key, causal),
                  {out, lse, start},
                  scale});
}

ForwardResult forward_strided(const ForwardArguments& a) {
  check_parts("attention", a.q, a.query_sums, a.parts, a.logit_bound, a.options);
  const PartsForward result = forward_parts(a.q, a.query_sums, a.parts, a.logit_bound, a.options);
  return {result.out, result.lse, result.start};
}

ForwardResult forward_meta(const ForwardArguments& a) {
  const auto sizes = a.q.sym_sizes();
  const c10::SymInt num_blocks = (sizes[1] + (kQueryBlock - 1)) / kQueryBlock;
  const at::ScalarType lse_dtype = a.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {a.q.new_empty_symint(sizes),
          a.q.new_empty_symint({sizes[0], sizes[2], sizes[1]}, a.q.options().dtype(lse_dtype)),
          a.q.new_empty_symint(
              {c10::SymInt(static_cast<int64_t>(a.parts.size())), sizes[0], sizes[2], num_blocks},
              a.q.options().dtype(at::kInt))};
}

void check_backward(const BackwardArguments& a) {
  constexpr std::string_view kOp = "attention_parts_backward";
  check_parts(kOp, a.q, a.query_sums, a.parts, {}, {.scale = a.scale});
  const tensor::Dim B = {"B", a.q.size(0)}, Tq = {"Tq", a.q.size(1)}, H = {"H", a.q.size(2)};
  const at::ScalarType lse_dtype = a.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto check = [&](std::string_view arg,
                         const at::Tensor& t,
                         std::initializer_list<tensor::Dim> shape,
                         at::ScalarType dtype) {
    tensor::check_shape(kOp, arg, t, shape);
    tensor::check_dtype(kOp, arg, t, {dtype});
    tensor::check_device(kOp, arg, t, "q", a.q.device());
  };
  const auto check_rows = [&](std::string_view arg, const at::Tensor& t) {
    check(arg, t, {B, Tq, H, {"D", a.q.size(3)}}, a.q.scalar_type());
  };
  check_rows("out", a.forward.out);
  if (a.dout.defined()) check_rows("dout", a.dout);
  check("lse", a.forward.lse, {B, H, Tq}, lse_dtype);
  if (a.dlse.defined()) check("dlse", a.dlse, {B, H, Tq}, lse_dtype);
  const int64_t num_blocks = (a.q.size(1) + kQueryBlock - 1) / kQueryBlock;
  const tensor::Dim parts = {"parts", static_cast<int64_t>(a.parts.size())};
  check("start", a.forward.start, {parts, B, H, {"blocks", num_blocks}}, at::kInt);
}

BackwardResult backward_strided(const BackwardArguments& a) {
  check_backward(a);
  PartsBackward result = backward_parts(a);
  const auto absent = [&](at::Tensor& t) {
    if (!t.defined()) t = a.q.new_empty({0}, a.q.options().dtype(at::kDouble));
  };
  absent(result.dquery_sums);
  for (at::Tensor& t : result.dsums) absent(t);
  return {result.dq, result.dquery_sums, result.dk, result.dv, result.dsums};
}

BackwardResult backward_meta(const BackwardArguments& a) {
  const auto same_or_empty = [&](const at::Tensor& t) {
    const auto f64 = a.q.options().dtype(at::kDouble);
    return t.defined() ? a.q.new_empty_symint(t.sym_sizes(), f64) : a.q.new_empty({0}, f64);
  };
  std::vector<at::Tensor> dk, dv, dsums;
  for (const KeyPart& part : a.parts) {
    dk.push_back(part.k.new_empty_symint(part.k.sym_sizes()));
    dv.push_back(part.v.new_empty_symint(part.v.sym_sizes()));
    dsums.push_back(same_or_empty(part.sums));
  }
  return {a.q.new_empty_symint(a.q.sym_sizes()),
          same_or_empty(any_sums(a.parts) ? a.query_sums : at::Tensor()),
          dk,
          dv,
          dsums};
}

template <class Signature>
auto find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

BackwardResult call_backward(const BackwardArguments& a) {
  static const auto op =
      find_op<decltype(unpacked_backward<backward_strided>)>("reynard::attention_parts_backward");
  const PartLists parts = lists_of(a.parts);
  return op.call(optional_of(a.dout),
                 optional_of(a.dlse),
                 a.q,
                 optional_of(a.query_sums),
                 parts.k,
                 parts.v,
                 parts.sums,
                 parts.first_key,
                 parts.causal,
                 a.forward.out,
                 a.forward.lse,
                 a.forward.start,
                 a.scale);
}

// Differentiates attention_parts. The tensors with gradients travel as one flat list:
// q, query_sums (when defined), then k, v and sums (when defined) of every part.
struct AttentionParts : torch::autograd::Function<AttentionParts> {
  using Context = torch::autograd::AutogradContext;
  using Variables = torch::autograd::variable_list;

  static Variables differentiable(const ForwardArguments& a) {
    Variables list = {a.q};
    if (a.query_sums.defined()) list.push_back(a.query_sums);
    for (const KeyPart& part : a.parts) {
      list.insert(list.end(), {part.k, part.v});
      if (part.sums.defined()) list.push_back(part.sums);
    }
    return list;
  }

  static Variables forward(Context* ctx,
                           at::TensorList /*differentiable*/,
                           const ForwardArguments& a) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [out, lse, start] =
        call_attention_parts(a.q, a.query_sums, a.parts, a.logit_bound, a.options);
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({start});
    Variables saved = {out, lse, start, a.q, a.query_sums};
    for (const KeyPart& part : a.parts) {
      saved.insert(saved.end(), {part.k, part.v, part.sums, part.first_key});
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["causal"] = lists_of(a.parts).causal;
    ctx->saved_data["scale"] = a.options.scale;
    return {out, lse, start};
  }

  static Variables backward(Context* ctx, const Variables& grads) {
    const Variables saved = ctx->get_saved_variables();
    const std::vector<int64_t> causal = ctx->saved_data["causal"].toIntVector();
    BackwardArguments a = {.dout = grads[0],
                           .dlse = grads[1],
                           .q = saved[3],
                           .query_sums = saved[4],
                           .parts = {},
                           .forward = {saved[0], saved[1], saved[2]},
                           .scale = ctx->saved_data["scale"].toDouble()};
    for (size_t p = 0; p < causal.size(); ++p) {
      const at::Tensor* part = &saved[5 + 4 * p];
      a.parts.push_back({part[0], part[1], part[2], part[3], causal[p] != 0});
    }
    const auto [dq, dquery_sums, dk, dv, dsums] = call_backward(a);
    Variables result = {dq};
    // Query sums without sums of any part have no effect.
    if (a.query_sums.defined()) {
      result.push_back(any_sums(a.parts) ? dquery_sums : at::Tensor());
    }
    for (size_t p = 0; p < a.parts.size(); ++p) {
      result.insert(result.end(), {dk[p], dv[p]});
      if (a.parts[p].sums.defined()) result.push_back(dsums[p]);
    }
    result.emplace_back();  // ForwardArguments
    return result;
  }
};

ForwardResult forward_autograd(const ForwardArguments& a) {
  const auto variables = AttentionParts::differentiable(a);
  const auto results = AttentionParts::apply(at::TensorList(variables), a);
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
  const AttentionOptions options = {scale, log_pruning_tolerance, pruning_rule_named(rule)};
  KeyPart part = {k, v, {}, tensor_of(first_key), true};
  const auto symbolic = [](const at::Tensor& t) {
    return t.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
  };
  if (!symbolic(q) && !symbolic(k)) {
    check_gated("attention", q, part, tensor_of(log_gate), tensor_of(logit_bound), options);
  }
  at::Tensor query_sums;
  if (log_gate) {
    part.sums = gate_sums(*log_gate, part.first_key);
    const c10::SymInt Tq = q.sym_size(1), Tk = k.sym_size(1);
    // As many queries as keys: a slice of all would cost its gradient two copies.
    const bool same = !symbolic(q) && !symbolic(k) && Tq == Tk;
    query_sums = same ? part.sums : part.sums.slice_symint(2, Tk - Tq, Tk);
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
  m.impl("attention_parts", unpacked_forward<forward_strided>);
  m.impl("attention_parts_backward", unpacked_backward<backward_strided>);
}
TORCH_LIBRARY_IMPL(reynard, CUDA, m) {
  m.impl("attention", attention_composite);
  m.impl("attention_parts", unpacked_forward<forward_strided>);
  m.impl("attention_parts_backward", unpacked_backward<backward_strided>);
}
TORCH_LIBRARY_IMPL(reynard, Meta, m) {
  m.impl("attention", attention_composite);
  m.impl("attention_parts", unpacked_forward<forward_meta>);
  m.impl("attention_parts_backward", unpacked_backward<backward_meta>);
}
TORCH_LIBRARY_IMPL(reynard, Autograd, m) {
  m.impl("attention", attention_composite);
  m.impl("attention_parts", unpacked_forward<forward_autograd>);
  m.impl("attention_parts_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

ForwardResult call_attention_parts(const at::Tensor& q,
                                   const at::Tensor& query_sums,
                                   std::span<const KeyPart> parts,
                                   const at::Tensor& logit_bound,
                                   const AttentionOptions& options) {
  static const auto op =
      find_op<decltype(unpacked_forward<forward_strided>)>("reynard::attention_parts");
  const PartLists lists = lists_of(parts);
  return op.call(q,
                 optional_of(query_sums),
                 lists.k,
                 lists.v,
                 lists.sums,
                 lists.first_key,
                 lists.causal,
                 optional_of(logit_bound),
                 options.scale,
                 options.log_pruning_tolerance,
                 config::name_of(options.rule));
}

ForwardResult call_attention(const at::Tensor& q,
                             const KeyPart& part,
                             const at::Tensor& log_gate,
                             const at::Tensor& logit_bound,
                             const AttentionOptions& options) {
  static const auto op = find_op<decltype(attention_composite)>("reynard::attention");
  return op.call(q,
                 part.k,
                 part.v,
                 optional_of(log_gate),
                 optional_of(part.first_key),
                 optional_of(logit_bound),
                 options.scale,
                 options.log_pruning_tolerance,
                 config::name_of(options.rule));
}

}  // namespace reynard::attention
