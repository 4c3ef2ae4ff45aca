#include "reynard/attention/step_tables.h"

#include "reynard/attention/part_kernels.h"
#include "reynard/attention/scale.h"
#include "reynard/tensor/to_device.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace reynard::attention {

StepTables::StepTables(std::shared_ptr<PagePool> pool, const StepShape& shape)
    : pool_(std::move(pool)), shape_(shape) {
  const auto [L, S, G, N] = shape_;
  const int64_t H = G * pool_->layout().group;
  const auto of = [&](at::ScalarType dtype) {
    return at::TensorOptions(pool_->layout().device).dtype(dtype);
  };
  page_table_ = at::full({L, S, G, N}, -1, of(at::kInt));
  evicted_masses_ = at::zeros({L, S, H}, of(at::kDouble));
  evicted_norms_ = at::zeros({L, S, G}, of(at::kFloat));
  lengths_ = at::zeros({S}, of(at::kLong));
  first_key_ = at::zeros({S}, of(at::kInt));
  versions_.resize(L * S, 0);
}

void StepTables::update(std::span<const LayerCache* const> caches, int64_t window) {
  const int64_t L = shape_.num_layers, S = shape_.num_sequences;
  TORCH_INTERNAL_ASSERT(std::ssize(caches) == L * S);
  const at::Tensor lengths = at::empty({S}, at::kLong), first_key = at::empty({S}, at::kInt);
  for (int64_t s = 0; s < S; ++s) {
    const int64_t length = caches[s] ? caches[s]->length() : 0;
    lengths.mutable_data_ptr<int64_t>()[s] = length;
    first_key.mutable_data_ptr<int32_t>()[s] =
        static_cast<int32_t>(window > 0 ? std::max<int64_t>(length - window, 0) : 0);
    bool changed = false;
    for (int64_t i = s; i < L * S; i += S) {
      if (length == 0) continue;
      TORCH_INTERNAL_ASSERT(caches[i]->pool() == pool_ && caches[i]->length() == length);
      changed |= versions_[i] != caches[i]->version();
    }
    if (!changed) continue;
    update_sequence(s, caches);
    for (int64_t i = s; i < L * S; i += S) versions_[i] = caches[i]->version();
  }
  lengths_.copy_(lengths, /*non_blocking=*/true);
  if (window > 0 || window_ > 0) first_key_.copy_(first_key, /*non_blocking=*/true);
  window_ = window;
}

void StepTables::update_sequence(int64_t s, std::span<const LayerCache* const> caches) {
  const auto [L, S, G, N] = shape_;
  const int64_t H = G * pool_->layout().group;
  at::Tensor pages = at::empty({L, G, N}, at::kInt);
  at::Tensor masses = at::empty({L, H}, at::kDouble), norms = at::empty({L, G}, at::kFloat);
  auto* page = pages.mutable_data_ptr<int32_t>();
  for (int64_t layer = 0; layer < L; ++layer) {
    const LayerCache& cache = *caches[layer * S + s];
    for (int64_t g = 0; g < G; ++g, page += N) {
      const std::vector<int32_t>& of_head = cache.pages(g);
      TORCH_INTERNAL_ASSERT(std::ssize(of_head) <= N);
      std::fill(std::copy(of_head.begin(), of_head.end(), page), page + N, -1);
    }
    std::ranges::copy(cache.evicted_masses(), masses.mutable_data_ptr<double>() + layer * H);
    std::ranges::copy(cache.evicted_norms(), norms.mutable_data_ptr<float>() + layer * G);
  }
  at::Tensor* const moved[] = {&pages, &masses, &norms};
  tensor::to_device_together(moved, pool_->layout().device);
  page_table_.select(1, s).copy_(pages);
  evicted_masses_.select(1, s).copy_(masses);
  evicted_norms_.select(1, s).copy_(norms);
}

void StepTables::append(int64_t layer,
                        const at::Tensor& k,
                        const at::Tensor& v,
                        const at::Tensor& log_gate) const {
  const PageWrite tokens = {.keys = pool_->keys(),
                            .values = pool_->values(),
                            .sums = pool_->sums(),
                            .norms = pool_->norms(),
                            .masses = pool_->masses(),
                            .scales = pool_->scales(),
                            .page_table = page_table_.select(0, layer),
                            .lengths = lengths_,
                            .k = k.contiguous(),
                            .v = v.contiguous(),
                            .log_gate = log_gate.defined() ? log_gate.contiguous() : log_gate,
                            .token_sums = {}};
  part_kernels(k).write_pages(tokens);
}

at::Tensor StepTables::attend(int64_t layer,
                              const at::Tensor& q,
                              const at::Tensor& logit_bound,
                              const AttentionOptions& options) const {
  DecodeArguments a;
  a.q = q.contiguous();
  a.keys = pool_->keys(), a.values = pool_->values(), a.scales = pool_->scales();
  a.sums = pool_->sums(), a.norms = pool_->norms(), a.masses = pool_->masses();
  a.page_table = page_table_.select(0, layer), a.lengths = lengths_, a.first_key = first_key_;
  a.logit_bound = logit_bound.defined() ? logit_bound.contiguous() : logit_bound;
  a.evicted_masses = evicted_masses_.select(0, layer);
  a.evicted_norms = evicted_norms_.select(0, layer);
  a.options = options;
  a.options.scale = effective_scale(options.scale, q.size(2));
  return part_kernels(q).decode(a).out;
}

}  // namespace reynard::attention
