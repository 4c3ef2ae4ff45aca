// attention_decode as an operator: pages in plain tensors, which may come from anywhere and are
// checked as such. It has no gradients: asking for some is an error.

#include "reynard/attention/arguments.h"
#include "reynard/attention/cache.h"
#include "reynard/attention/part_kernels.h"
#include "reynard/attention/scale.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace reynard::attention {

namespace {

using OptionalTensor = std::optional<at::Tensor>;
using DecodeResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // out, lse, start
constexpr std::string_view kDecode = "attention_decode";

void check_pages(const DecodeArguments& a) {
  tensor::check_shape(kDecode, "q", a.q, {{"S"}, {"H"}, {"D"}});
  const int64_t H = a.q.size(1), D = a.q.size(2);
  tensor::check_dtype(kDecode, "q", a.q, {at::kFloat, at::kBFloat16, at::kHalf});
  tensor::check_value(
      D >= 1 && D <= kLargestHeadDim, kDecode, "head dimension D", D, "1 <= D <= 256");
  tensor::check_shape(kDecode, "keys", a.keys, {{"P"}, {"", kPageTokens}, {"D", D}});
  tensor::check_dtype(kDecode, "keys", a.keys, {a.q.scalar_type()});
  const int64_t P = a.keys.size(0);
  tensor::check_shape(kDecode, "values", a.values, {{"P", P}, {"", kPageTokens}, {"D", D}});
  tensor::check_dtype(kDecode, "values", a.values, {a.q.scalar_type()});
  tensor::check_shape(kDecode, "page_table", a.page_table, {{"S", a.q.size(0)}, {"G"}, {"N"}});
  tensor::check_dtype(kDecode, "page_table", a.page_table, {at::kInt});
  const int64_t G = a.page_table.size(1);
  tensor::check_value(G >= 1 && H % G == 0,
                      kDecode,
                      "number of key/value heads G of page_table",
                      G,
                      "a divisor of the " + std::to_string(H) + " query heads");
  if (a.sums.defined()) {
    tensor::check_shape(kDecode, "sums", a.sums, {{"P", P}, {"H/G", H / G}, {"", kPageTokens}});
    tensor::check_dtype(kDecode, "sums", a.sums, {at::kDouble});
  }
  if (a.masses.defined()) {
    tensor::check_shape(kDecode, "masses", a.masses, {{"P", P}, {"H/G", H / G}});
    tensor::check_dtype(kDecode, "masses", a.masses, {at::kDouble});
  }
  if (a.norms.defined()) {
    tensor::check_shape(kDecode, "norms", a.norms, {{"P", P}});
    tensor::check_dtype(kDecode, "norms", a.norms, {at::kFloat});
  }
  for (const auto& [arg, t] : {std::pair("keys", a.keys),
                               std::pair("values", a.values),
                               std::pair("page_table", a.page_table),
                               std::pair("sums", a.sums),
                               std::pair("masses", a.masses),
                               std::pair("norms", a.norms)}) {
    tensor::check_device(kDecode, arg, t, "q", a.q.device());
  }
}

void check_sequences(const DecodeArguments& a) {
  const int64_t S = a.q.size(0);
  tensor::check_shape(kDecode, "lengths", a.lengths, {{"S", S}});
  tensor::check_dtype(kDecode, "lengths", a.lengths, {at::kLong});
  if (a.first_key.defined()) {
    tensor::check_shape(kDecode, "first_key", a.first_key, {{"S", S}});
    tensor::check_dtype(kDecode, "first_key", a.first_key, {at::kInt});
  }
  if (a.logit_bound.defined()) {
    tensor::check_shape(kDecode, "logit_bound", a.logit_bound, {{"H", a.q.size(1)}});
    tensor::check_dtype(kDecode, "logit_bound", a.logit_bound, {at::kFloat});
  }
  for (const auto& [arg, t] : {std::pair("lengths", a.lengths),
                               std::pair("first_key", a.first_key),
                               std::pair("logit_bound", a.logit_bound)}) {
    tensor::check_device(kDecode, arg, t, "q", a.q.device());
  }
  check_options(kDecode, a.options);
  if (a.options.log_pruning_tolerance < 0 && a.sums.defined()) {
    tensor::check_value(
        a.masses.defined(), kDecode, "masses", "undefined", "a tensor, since pruning is on");
    tensor::check_value(a.norms.defined() || a.logit_bound.defined(),
                        kDecode,
                        "norms and logit_bound",
                        "undefined",
                        "one of them, since pruning is on");
  }
}

// Page ids and lengths index memory: out of range they would read outside the pool. Both are
// contiguous and on the CPU.
void check_sequence_values(const DecodeArguments& a) {
  const int64_t S = a.q.size(0), P = a.keys.size(0);
  const int64_t G = a.page_table.size(1), N = a.page_table.size(2);
  const auto* id = a.page_table.const_data_ptr<int32_t>();
  for (int64_t s = 0; s < S; ++s) {
    const int64_t length = a.lengths.const_data_ptr<int64_t>()[s];
    if (length < 0 || length > N * kPageTokens) {
      tensor::fail(kDecode,
                   fmt::format("lengths at [{}]", s),
                   std::to_string(length),
                   fmt::format("0 <= length <= 64 N = {}", N * kPageTokens));
    }
    // Evicted pages lie in front of all others; those before the first key are not read.
    const int64_t end = pages_for(length);
    const int64_t first_key = a.first_key.defined() ? a.first_key.const_data_ptr<int32_t>()[s] : 0;
    const int64_t begin =
        std::clamp<int64_t>(first_key / kPageTokens, 0, std::max(end - 1, int64_t{0}));
    for (int64_t g = 0; g < G; ++g) {
      bool follows_a_page = false;
      for (int64_t n = 0; n < N; ++n, ++id) {
        const auto fail_at = [&](std::string_view requirement) {
          tensor::fail(kDecode,
                       fmt::format("page_table at [{}, {}, {}]", s, g, n),
                       std::to_string(*id),
                       requirement);
        };
        if (*id >= P) fail_at(fmt::format("ids below the number of pages, {}", P));
        if (n < begin || n >= end) continue;
        if (*id < 0 && (follows_a_page || n == end - 1)) {
          fail_at("negative ids, of evicted pages, in front of all others and never as the last");
        }
        follows_a_page = *id >= 0;
      }
    }
  }
}

// The op for pages held in plain tensors.
DecodeResult attention_decode(const at::Tensor& q,
                              const at::Tensor& keys,
                              const at::Tensor& values,
                              const OptionalTensor& sums,
                              const OptionalTensor& norms,
                              const OptionalTensor& masses,
                              const at::Tensor& page_table,
                              const at::Tensor& lengths,
                              const OptionalTensor& first_key,
                              const OptionalTensor& logit_bound,
                              double scale,
                              double log_pruning_tolerance,
                              std::string_view rule) {
  const auto contiguous = [](const OptionalTensor& t) {
    return t ? t->contiguous() : at::Tensor();
  };
  DecodeArguments a;
  a.q = q.contiguous(), a.keys = keys.contiguous(), a.values = values.contiguous();
  a.sums = contiguous(sums), a.norms = contiguous(norms), a.masses = contiguous(masses);
  a.page_table = page_table.contiguous(), a.lengths = lengths.contiguous();
  a.first_key = contiguous(first_key), a.logit_bound = contiguous(logit_bound);
  a.options = {scale, log_pruning_tolerance, pruning_rule_named(rule)};
  check_pages(a);
  check_sequences(a);
  if (!q.is_cuda()) check_sequence_values(a);  // reading a value waits for all of a GPU's work
  a.options.scale = effective_scale(scale, q.size(2));
  const DecodeOutput result = part_kernels(q).decode(a);
  return {result.out, result.lse, result.start};
}

DecodeResult attention_decode_meta(const at::Tensor& q,
                                   const at::Tensor& /*keys*/,
                                   const at::Tensor& /*values*/,
                                   const OptionalTensor& /*sums*/,
                                   const OptionalTensor& /*norms*/,
                                   const OptionalTensor& /*masses*/,
                                   const at::Tensor& /*page_table*/,
                                   const at::Tensor& /*lengths*/,
                                   const OptionalTensor& /*first_key*/,
                                   const OptionalTensor& /*logit_bound*/,
                                   double /*scale*/,
                                   double /*log_pruning_tolerance*/,
                                   std::string_view /*rule*/) {
  const auto sizes = q.sym_sizes();
  return {q.new_empty_symint(sizes),
          q.new_empty_symint({sizes[0], sizes[1]}, q.options().dtype(at::kFloat)),
          q.new_empty_symint({sizes[0], sizes[1]}, q.options().dtype(at::kInt))};
}

TORCH_LIBRARY_FRAGMENT(reynard, m) {
  m.def(
      "attention_decode(Tensor q, Tensor keys, Tensor values, Tensor? sums, Tensor? norms, "
      "Tensor? masses, Tensor page_table, Tensor lengths, Tensor? first_key=None, "
      "Tensor? logit_bound=None, *, float scale=0., float log_pruning_tolerance=0., "
      "str rule=\"tight\") -> (Tensor out, Tensor lse, Tensor start)");
}
TORCH_LIBRARY_IMPL(reynard, CPU, m) {
  m.impl("attention_decode", attention_decode);
}
TORCH_LIBRARY_IMPL(reynard, CUDA, m) {
  m.impl("attention_decode", attention_decode);
}
TORCH_LIBRARY_IMPL(reynard, Meta, m) {
  m.impl("attention_decode", attention_decode_meta);
}
TORCH_LIBRARY_IMPL(reynard, Autograd, m) {
  m.impl("attention_decode", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

}  // namespace reynard::attention
