#include "reynard/attention/reference.h"

#include "reynard/attention/pruning_limits.h"
#include "reynard/attention/scale.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/log.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <vector>

namespace reynard::attention {

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

at::ScalarType compute_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// (B, T, G, D) -> (B, H, T, D) in the compute dtype: every query head gets its key/value head.
at::Tensor per_head(const at::Tensor& t, int64_t H) {
  const at::Tensor heads = t.transpose(1, 2).to(compute_dtype(t));
  return heads.size(1) == H ? heads : heads.repeat_interleave(H / heads.size(1), 1);
}

// (B, H, T, D) -> (B, T, G, D): the heads of a group are summed.
at::Tensor per_group(const at::Tensor& t, int64_t G) {
  const int64_t H = t.size(1);
  return t.reshape({t.size(0), G, G == 0 ? 0 : H / G, t.size(2), t.size(3)})
      .sum(2)
      .transpose(1, 2)
      .contiguous();
}

// Rounds to the dtype of the inputs and back, as a matrix product of that dtype needs.
at::Tensor rounded_like(const at::Tensor& t, const at::Tensor& like) {
  return t.to(like.scalar_type()).to(t.scalar_type());
}

// Row maximum with 0 for rows that see nothing, detached: it only shifts the exponent.
at::Tensor row_shift(const at::Tensor& logits) {
  if (logits.size(-1) == 0) return at::zeros_like(logits.sum(-1, true)).detach();
  const at::Tensor largest = logits.detach().amax({-1}, true);
  return at::where(at::isfinite(largest), largest, at::zeros_like(largest));
}

}  // namespace

at::Tensor visible_keys(const KeyPart& part, int64_t Tq, const at::Tensor& start) {
  const int64_t Tk = part.k.size(1);
  const auto index = at::device(part.k.device()).dtype(at::kLong);
  const at::Tensor key = at::arange(Tk, index);
  const at::Tensor query = at::arange(Tq, index);
  at::Tensor visible = at::ones({1, 1, Tq, Tk}, index.dtype(at::kBool));
  if (part.causal) {
    visible = visible.logical_and(key.unsqueeze(0) <= query.unsqueeze(1) + (Tk - Tq));
  }
  if (part.first_key.defined()) {
    visible = visible.logical_and(key >= part.first_key.unsqueeze(1).unsqueeze(-1));
  }
  if (start.defined()) {
    const at::Tensor row_start = start.index_select(2, query.floor_divide(kQueryBlock));
    visible = visible.logical_and(key >= row_start.unsqueeze(-1));
  }
  return visible.expand({part.k.size(0), visible.size(1), Tq, Tk});
}

at::Tensor reference_logits(const at::Tensor& q,
                            const at::Tensor& query_sums,
                            const KeyPart& part,
                            double scale,
                            const at::Tensor& start) {
  const int64_t H = q.size(2);
  const at::Tensor keys = per_head(part.k, H);
  at::Tensor logits = at::matmul(per_head(q, H), keys.transpose(2, 3)) * scale;
  if (part.sums.defined()) {
    // The difference is formed in f64: sums grow with T, their differences need not.
    const at::Tensor bias = query_sums.unsqueeze(-1) - part.sums.unsqueeze(-2);
    logits = logits + bias.to(logits.scalar_type());
  }
  return logits.masked_fill(visible_keys(part, q.size(1), start).logical_not(), kMinusInfinity);
}

ReferenceOutput reference_attention(const at::Tensor& q,
                                    const at::Tensor& query_sums,
                                    std::span<const KeyPart> parts,
                                    double scale,
                                    std::span<const at::Tensor> starts) {
  scale = effective_scale(scale, q.size(3));
  std::vector<at::Tensor> part_logits;
  std::vector<at::Tensor> part_values;
  for (size_t p = 0; p < parts.size(); ++p) {
    const at::Tensor start = starts.empty() ? at::Tensor() : starts[p];
    part_logits.push_back(reference_logits(q, query_sums, parts[p], scale, start));
    part_values.push_back(per_head(parts[p].v, q.size(2)));
  }
  const at::Tensor logits = at::cat(part_logits, -1);
  const at::Tensor shift = row_shift(logits);
  const at::Tensor masses = at::exp(logits - shift);
  const at::Tensor total = masses.sum(-1, true);
  const at::Tensor sees_nothing = total.eq(0);
  const at::Tensor divisor = total.masked_fill(sees_nothing, 1);
  const at::Tensor weights = rounded_like(masses / divisor, q);
  const at::Tensor out = at::matmul(weights, at::cat(part_values, 2));
  const at::Tensor lse = (at::log(divisor) + shift).masked_fill(sees_nothing, kMinusInfinity);
  return {out.transpose(1, 2).to(q.scalar_type()).contiguous(), lse.squeeze(-1)};
}

ReferenceGradients reference_backward_part(const PartArguments& arguments,
                                           const at::Tensor& dout,
                                           const at::Tensor& lse,
                                           const at::Tensor& delta) {
  const auto& [q, query_sums, part, start, scale] = arguments;
  const int64_t H = q.size(2);
  const int64_t G = part.k.size(2);
  const at::Tensor logits = reference_logits(q, query_sums, part, scale, start);
  // Rows that see nothing have lse -inf: any finite value gives them weights exp(-inf) = 0.
  const at::Tensor finite_lse = at::where(at::isfinite(lse), lse, at::zeros_like(lse));
  const at::Tensor weights = at::exp(logits - finite_lse.unsqueeze(-1));
  const at::Tensor rows = per_head(dout, H);
  const at::Tensor dweights = at::matmul(rows, per_head(part.v, H).transpose(2, 3));
  const at::Tensor dlogits = weights * (dweights - delta.unsqueeze(-1));
  const at::Tensor rounded = rounded_like(dlogits, q);
  ReferenceGradients result;
  result.dq = (at::matmul(rounded, per_head(part.k, H)) * scale).transpose(1, 2).contiguous();
  const at::Tensor dk = at::matmul(rounded.transpose(2, 3), per_head(q, H)) * scale;
  result.dk = per_group(dk, G);
  const at::Tensor dv = at::matmul(rounded_like(weights, q).transpose(2, 3), rows);
  result.dv = per_group(dv, G);
  if (part.sums.defined()) {
    result.dquery_sums = dlogits.sum(-1).to(at::kDouble);
    result.dsums = -dlogits.sum(-2).to(at::kDouble);
  }
  return result;
}

}  // namespace reynard::attention
