#include "reynard/attention/pruning.h"

#include "reynard/attention/part_kernels.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

namespace reynard::attention {

at::Tensor first_visible(const at::Tensor& q, const KeyPart& part) {
  const int64_t B = q.size(0), Tq = q.size(1), H = q.size(2);
  const int64_t M = (Tq + kQueryBlock - 1) / kQueryBlock;
  if (!part.first_key.defined()) return at::zeros({B, H, M}, q.options().dtype(at::kInt));
  return part.first_key.slice(1, 0, Tq, kQueryBlock)
      .clamp_min(0)
      .unsqueeze(1)
      .expand({B, H, M})
      .contiguous();
}

namespace {

// Rounded down to whole key blocks, like every start.
int64_t whole_blocks(int64_t keys) {
  return keys / kKeyBlock * kKeyBlock;
}

}  // namespace

at::Tensor nearest_starts(const at::Tensor& q, const KeyPart& part) {
  const at::Tensor visible = first_visible(q, part);
  const int64_t Tq = q.size(1), Tk = part.k.size(1);
  const at::Tensor block = at::arange(visible.size(2), visible.options());
  const at::Tensor nearest = part.causal ? block * kQueryBlock + whole_blocks(Tk - Tq) - kKeyBlock
                                         : block * 0 + whole_blocks(Tk) - 2 * kKeyBlock;
  return at::maximum(visible, nearest);
}

std::vector<at::Tensor> pruned_starts(const at::Tensor& q,
                                      const at::Tensor& query_sums,
                                      std::span<const KeyPart> parts,
                                      const at::Tensor& logit_bound,
                                      const AttentionOptions& options,
                                      const RowFloors& floors) {
  return part_kernels(q).pruned_starts(q, query_sums, parts, logit_bound, options, floors);
}

}  // namespace reynard::attention
