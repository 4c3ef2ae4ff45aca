#include "reynard/attention/arguments.h"

#include "reynard/tensor/check.h"
#include "reynard/tensor/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

namespace reynard::attention {

namespace {

using tensor::check_device;
using tensor::check_dtype;
using tensor::check_shape;
using tensor::check_value;

void check_same_dtype(std::string_view op,
                      std::string_view arg,
                      const at::Tensor& t,
                      const at::Tensor& q) {
  if (t.scalar_type() == q.scalar_type()) return;
  throw Error(fmt::format("{}: {} has dtype {}; expected {}, as q (autocast casts neither)",
                          op,
                          arg,
                          c10::toString(t.scalar_type()),
                          c10::toString(q.scalar_type())));
}

void check_query(std::string_view op, const at::Tensor& q) {
  check_shape(op, "q", q, {{"B"}, {"Tq"}, {"H"}, {"D"}});
  check_dtype(op, "q", q, {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble});
  const int64_t D = q.size(3);
  check_value(D >= 1 && D <= kLargestHeadDim, op, "head dimension D", D, "1 <= D <= 256");
  check_value(q.size(2) >= 1, op, "number of query heads H", q.size(2), "at least 1");
}

void check_keys(std::string_view op,
                const std::string& suffix,
                const at::Tensor& q,
                const at::Tensor& k,
                const at::Tensor& v) {
  const int64_t B = q.size(0), H = q.size(2), D = q.size(3);
  check_shape(op, "k" + suffix, k, {{"B", B}, {"Tk"}, {"G"}, {"D", D}});
  check_same_dtype(op, "k" + suffix, k, q);
  check_device(op, "k" + suffix, k, "q", q.device());
  const int64_t G = k.size(2);
  check_value(G >= 1 && H % G == 0,
              op,
              "number of key/value heads G of k" + suffix,
              G,
              fmt::format("a divisor of the {} query heads", H));
  check_shape(op, "v" + suffix, v, {{"B", B}, {"Tk", k.size(1)}, {"G", G}, {"D", D}});
  check_same_dtype(op, "v" + suffix, v, q);
  check_device(op, "v" + suffix, v, "q", q.device());
  check_value(k.size(1) < std::numeric_limits<int32_t>::max(),
              op,
              "number of keys of k" + suffix,
              k.size(1),
              "less than 2^31 (key indices are int32)");
}

void check_first_key(std::string_view op,
                     const std::string& arg,
                     const at::Tensor& first_key,
                     const at::Tensor& q) {
  if (!first_key.defined()) return;
  const int64_t B = q.size(0), Tq = q.size(1);
  check_shape(op, arg, first_key, {{"B", B}, {"Tq", Tq}});
  check_dtype(op, arg, first_key, {at::kInt});
  check_device(op, arg, first_key, "q", q.device());
  check_first_key_values(op, arg, first_key);
}

void check_causal(std::string_view op, const std::string& suffix, int64_t Tq, int64_t Tk) {
  check_value(Tq <= Tk,
              op,
              "number of queries of q",
              Tq,
              fmt::format("at most the {} keys of k{} (queries are the last positions of a causal "
                          "part; use causal = false for a part of other keys)",
                          Tk,
                          suffix));
}

void check_bound(std::string_view op, const at::Tensor& bound, const at::Tensor& q) {
  if (!bound.defined()) return;
  const int64_t B = q.size(0), H = q.size(2);
  check_dtype(op, "logit_bound", bound, {at::kFloat});
  if (bound.dim() == 1) {
    check_shape(op, "logit_bound", bound, {{"H", H}});
  } else {
    check_shape(op, "logit_bound", bound, {{"B", B}, {"H", H}});
  }
  check_device(op, "logit_bound", bound, "q", q.device());
  check_values(
      op, "logit_bound", bound, [](const at::Tensor& t) { return t.ge(0); }, "bounds >= 0");
}

}  // namespace

bool has_values_to_check(const at::Tensor& t) {
  // Read every time: tests switch it, and getenv is nothing beside an attention call.
  const char* value = std::getenv("REYNARD_DEBUG_CHECKS");
  return value != nullptr && std::string_view(value) == "1" && !at::isTensorSubclassLike(t);
}

void check_values(std::string_view op,
                  std::string_view arg,
                  const at::Tensor& t,
                  const std::function<at::Tensor(const at::Tensor&)>& allowed,
                  std::string_view requirement) {
  if (!has_values_to_check(t)) return;
  const at::Tensor wrong = allowed(t).logical_not();
  if (!wrong.any().item<bool>()) return;
  const at::Tensor place = wrong.nonzero()[0].cpu().contiguous();
  const at::Tensor value = t.masked_select(wrong)[0];
  tensor::fail(op,
               fmt::format("{} at [{}]",
                           arg,
                           fmt::join(place.const_data_ptr<int64_t>(),
                                     place.const_data_ptr<int64_t>() + place.numel(),
                                     ", ")),
               at::isIntegralType(t.scalar_type(), /*includeBool=*/false)
                   ? std::to_string(value.item<int64_t>())
                   : fmt::format("{:.6g}", value.item<double>()),
               requirement);
}

void check_first_key_values(std::string_view op,
                            std::string_view arg,
                            const at::Tensor& first_key) {
  if (!first_key.defined()) return;
  const auto allowed = [](const at::Tensor& t) {
    at::Tensor result = t.ge(0);
    if (t.size(1) > 1) result.slice(1, 1).logical_and_(t.slice(1, 1).ge(t.slice(1, 0, -1)));
    return result;
  };
  check_values(op, arg, first_key, allowed, "non-decreasing values >= 0");
}

void check_options(std::string_view op, const AttentionOptions& options) {
  check_value(std::isfinite(options.scale) && options.scale >= 0,
              op,
              "scale",
              options.scale,
              "a finite number > 0, or 0 for 1/sqrt(D)");
  check_value(std::isfinite(options.log_pruning_tolerance) && options.log_pruning_tolerance <= 0,
              op,
              "log_pruning_tolerance",
              options.log_pruning_tolerance,
              "the log of a share of the attention mass, such as -10; 0 turns pruning off");
}

void check_parts(std::string_view op,
                 const at::Tensor& q,
                 const at::Tensor& query_sums,
                 std::span<const KeyPart> parts,
                 const at::Tensor& logit_bound,
                 const AttentionOptions& options) {
  check_query(op, q);
  const int64_t B = q.size(0), Tq = q.size(1), H = q.size(2);
  check_value(!parts.empty(), op, "number of key parts", parts.size(), "at least one");
  if (query_sums.defined()) {
    check_shape(op, "query_sums", query_sums, {{"B", B}, {"H", H}, {"Tq", Tq}});
    check_dtype(op, "query_sums", query_sums, {at::kDouble});
    check_device(op, "query_sums", query_sums, "q", q.device());
  }
  for (size_t p = 0; p < parts.size(); ++p) {
    const KeyPart& part = parts[p];
    const std::string suffix = parts.size() == 1 ? "" : fmt::format(" of part {}", p);
    check_keys(op, suffix, q, part.k, part.v);
    if (part.sums.defined()) {
      check_shape(op, "sums" + suffix, part.sums, {{"B", B}, {"H", H}, {"Tk", part.k.size(1)}});
      check_dtype(op, "sums" + suffix, part.sums, {at::kDouble});
      check_device(op, "sums" + suffix, part.sums, "q", q.device());
      check_value(query_sums.defined(),
                  op,
                  "query_sums",
                  "undefined",
                  fmt::format("a tensor, since k{} has sums", suffix));
    }
    check_first_key(op, "first_key" + suffix, part.first_key, q);
    if (part.causal) check_causal(op, suffix, Tq, part.k.size(1));
  }
  check_bound(op, logit_bound, q);
  check_options(op, options);
}

void check_gated(std::string_view op,
                 const at::Tensor& q,
                 const KeyPart& part,
                 const at::Tensor& log_gate,
                 const at::Tensor& logit_bound,
                 const AttentionOptions& options) {
  check_query(op, q);
  const int64_t B = q.size(0), Tq = q.size(1), H = q.size(2);
  check_keys(op, "", q, part.k, part.v);
  const int64_t Tk = part.k.size(1);
  check_causal(op, "", Tq, Tk);
  if (log_gate.defined()) {
    check_shape(op, "log_gate", log_gate, {{"B", B}, {"Tk", Tk}, {"H", H}});
    check_dtype(op, "log_gate", log_gate, {at::kFloat, at::kDouble});
    check_device(op, "log_gate", log_gate, "q", q.device());
  }
  check_first_key(op, "first_key", part.first_key, q);
  check_bound(op, logit_bound, q);
  check_options(op, options);
}

}  // namespace reynard::attention
