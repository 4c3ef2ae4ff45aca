#include "reynard/attention/parts.h"

#include "reynard/attention/part_kernels.h"
#include "reynard/attention/pruning.h"
#include "reynard/attention/reference.h"
#include "reynard/attention/scale.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/exp.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isneginf.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace reynard::attention {

namespace {

at::Tensor with_unit_stride(const at::Tensor& t) {
  return t.defined() && t.stride(-1) != 1 && t.size(-1) != 1 ? t.contiguous() : t;
}

PartArguments kernel_arguments(const at::Tensor& q,
                               const at::Tensor& query_sums,
                               const KeyPart& part,
                               const at::Tensor& start,
                               double scale) {
  PartArguments arguments;
  arguments.q = with_unit_stride(q);
  arguments.part = part;
  arguments.part.k = with_unit_stride(part.k);
  arguments.part.v = with_unit_stride(part.v);
  if (part.sums.defined()) {
    arguments.query_sums = query_sums.contiguous();
    arguments.part.sums = part.sums.contiguous();
  }
  if (part.first_key.defined()) arguments.part.first_key = part.first_key.contiguous();
  if (start.defined()) arguments.start = start.contiguous();
  arguments.scale = scale;
  return arguments;
}

// Kernel or, for f64, the definition: out in out_dtype, normalised within the part.
ForwardPart run_forward(const at::Tensor& q,
                        const at::Tensor& query_sums,
                        const KeyPart& part,
                        const at::Tensor& start,
                        double scale,
                        at::ScalarType out_dtype) {
  if (q.scalar_type() == at::kDouble) {
    const ReferenceOutput exact =
        reference_attention(q, query_sums, {&part, 1}, scale, {&start, start.defined() ? 1U : 0U});
    return {exact.out, exact.lse};
  }
  return part_kernels(q).forward(kernel_arguments(q, query_sums, part, start, scale), out_dtype);
}

// Parts weigh by exp(lse_p - lse); rows that see nothing anywhere keep out 0 and lse -inf.
ForwardPart combined(const std::vector<ForwardPart>& parts, at::ScalarType out_dtype) {
  std::vector<at::Tensor> lses;
  for (const ForwardPart& part : parts) lses.push_back(part.lse);
  const at::Tensor lse = at::logsumexp(at::stack(lses), {0});
  const at::Tensor finite = at::where(at::isfinite(lse), lse, at::zeros_like(lse));
  at::Tensor out;
  for (const ForwardPart& part : parts) {
    const at::Tensor weight = at::exp(part.lse - finite).transpose(1, 2).unsqueeze(-1);
    const at::Tensor share = part.out * weight;
    out = out.defined() ? out + share : share;
  }
  return {out.to(out_dtype), lse};
}

bool prunes(const at::Tensor& q, std::span<const KeyPart> parts, const AttentionOptions& options) {
  if (options.log_pruning_tolerance == 0 || q.size(1) == 0) return false;
  return std::any_of(
      parts.begin(), parts.end(), [](const KeyPart& part) { return part.sums.defined(); });
}

// Whether forward_tight of the kernels takes a part that is the only one.
bool goes_by_tight_rule(const at::Tensor& q, const KeyPart& part, const AttentionOptions& options) {
  return options.rule == PruningRule::kTight && q.scalar_type() != at::kDouble && q.numel() > 0 &&
         part.k.size(1) > 0 && part_kernels(q).forward_tight;
}

// Lower bounds of the rows' log-sum-exps, known before the loop over keys: those of the nearest
// keys of every part. Not of heads that the rule leaves alone, if there is one part.
RowFloors row_floors(const at::Tensor& q,
                     const at::Tensor& query_sums,
                     std::span<const KeyPart> parts,
                     double scale,
                     double log_tolerance) {
  RowFloors floors;
  std::vector<at::Tensor> rows;
  for (const KeyPart& part : parts) {
    PartFloors one;
    if (q.scalar_type() == at::kDouble) {
      one.lse = run_forward(q, query_sums, part, nearest_starts(q, part), scale, at::kDouble).lse;
    } else {
      one = part_kernels(q).floors(kernel_arguments(q, query_sums, part, at::Tensor(), scale),
                                   parts.size() == 1 ? log_tolerance : 0);
    }
    rows.push_back(one.lse);
    if (one.query_norms.defined()) floors.query_norms = one.query_norms;
    floors.key_norms.push_back(one.key_norms);
    floors.masses.push_back(one.masses);
  }
  floors.rows = rows.size() == 1 ? rows[0] : at::logsumexp(at::stack(rows), {0});
  return floors;
}

// dout without the rows that see nothing, whose gradients, the derivative at out = 0, may be NaN.
// A GPU is not waited for.
at::Tensor gradients_of_seeing_rows(const at::Tensor& dout, const at::Tensor& lse) {
  if (!dout.defined() || !dout.is_cpu()) return dout;
  const at::Tensor sees_nothing = at::isneginf(lse);
  if (!sees_nothing.any().item<bool>()) return dout;
  return dout.masked_fill(sees_nothing.transpose(1, 2).unsqueeze(-1), 0);
}

// rowsum(dout * out) - dlse: (B, H, Tq) f64. Where a row sees nothing dlse, the derivative at -inf,
// is mostly NaN and has no effect.
at::Tensor row_deltas(const at::Tensor& dout, const at::Tensor& dlse, const PartsForward& forward) {
  at::Tensor delta;
  if (!dout.defined()) {
    delta = at::zeros_like(forward.lse, at::TensorOptions().dtype(at::kDouble));
  } else if (dout.scalar_type() == at::kDouble) {
    delta = (dout * forward.out).sum(-1).transpose(1, 2).contiguous();
  } else {
    delta = part_kernels(dout).row_products(with_unit_stride(dout), with_unit_stride(forward.out));
  }
  return dlse.defined() ? delta - dlse.masked_fill(at::isneginf(forward.lse), 0) : delta;
}

}  // namespace

PartsForward forward_parts(const at::Tensor& q,
                           const at::Tensor& query_sums,
                           std::span<const KeyPart> parts,
                           const at::Tensor& logit_bound,
                           const AttentionOptions& options) {
  const double scale = effective_scale(options.scale, q.size(3));
  const bool several = parts.size() > 1;
  const bool half = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  const bool pruned = prunes(q, parts, options);
  if (pruned && !several && goes_by_tight_rule(q, parts[0], options)) {
    const at::Tensor nearest = nearest_starts(q, parts[0]);
    const PrunedForwardPart part = part_kernels(q).forward_tight(
        kernel_arguments(q, query_sums, parts[0], nearest, scale), logit_bound, options);
    return {part.out, part.lse, part.start.unsqueeze(0)};
  }
  std::vector<at::Tensor> starts;
  if (pruned) {
    const RowFloors floors =
        options.rule == PruningRule::kTight
            ? row_floors(q, query_sums, parts, scale, options.log_pruning_tolerance)
            : RowFloors();
    starts = pruned_starts(q, query_sums, parts, logit_bound, options, floors);
  }
  std::vector<ForwardPart> results;
  for (size_t p = 0; p < parts.size(); ++p) {
    const at::ScalarType dtype = several && half ? at::kFloat : q.scalar_type();
    const at::Tensor start = pruned ? starts[p] : at::Tensor();
    results.push_back(run_forward(q, query_sums, parts[p], start, scale, dtype));
    if (!pruned) starts.push_back(first_visible(q, parts[p]));
  }
  const ForwardPart whole = several ? combined(results, q.scalar_type()) : results[0];
  return {whole.out, whole.lse, several ? at::stack(starts) : starts[0].unsqueeze(0)};
}

PartsBackward backward_parts(const BackwardArguments& arguments) {
  const auto& [given_dout, dlse, q, query_sums, parts, forward, given_scale] = arguments;
  const double scale = effective_scale(given_scale, q.size(3));
  const at::Tensor dout = gradients_of_seeing_rows(given_dout, forward.lse);
  const at::Tensor delta = row_deltas(dout, dlse, forward);
  const at::Tensor rows = with_unit_stride(dout.defined() ? dout : at::zeros_like(forward.out));
  const at::ScalarType dq_dtype = parts.size() > 1 ? at::kFloat : q.scalar_type();
  PartsBackward result;
  for (size_t p = 0; p < parts.size(); ++p) {
    const KeyPart& part = parts[p];
    const at::Tensor start = forward.start.select(0, static_cast<int64_t>(p));
    at::Tensor dq, dquery_sums, dk, dv, dsums;
    if (q.scalar_type() == at::kDouble) {
      const ReferenceGradients exact =
          reference_backward_part({q, query_sums, part, start, scale}, rows, forward.lse, delta);
      dq = exact.dq, dquery_sums = exact.dquery_sums;
      dk = exact.dk, dv = exact.dv, dsums = exact.dsums;
    } else {
      const BackwardPart kernel = part_kernels(q).backward(
          kernel_arguments(q, query_sums, part, start, scale), rows, forward.lse, delta, dq_dtype);
      dq = kernel.dq, dquery_sums = kernel.dquery_sums;
      dk = kernel.dk, dv = kernel.dv, dsums = kernel.dsums;
    }
    result.dq = result.dq.defined() ? result.dq + dq : dq;
    if (dquery_sums.defined()) {
      result.dquery_sums =
          result.dquery_sums.defined() ? result.dquery_sums + dquery_sums : dquery_sums;
    }
    result.dk.push_back(dk);
    result.dv.push_back(dv);
    result.dsums.push_back(dsums);
  }
  result.dq = result.dq.to(q.scalar_type());
  return result;
}

}  // namespace reynard::attention
