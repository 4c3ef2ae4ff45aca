#pragma once
// Page tables of several sequences that each take one token at a time, for all layers of a model,
// where the pages lie. What a step reads stays in its place, so that its calls can be recorded and
// done again (tensor/recorded_work.h); what did not change since the step before is not copied.
//
// Use, per step:
//   for (LayerCache* cache : caches) cache->extend(1);
//   tables.update(caches);
//   then per layer:
//     tables.append(layer, k, v, log_gate);
//     auto out = tables.attend(layer, q);

#include "reynard/attention/attention.h"
#include "reynard/attention/cache.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace reynard::attention {

struct StepShape {
  int64_t num_layers = 0, num_sequences = 0, num_kv_heads = 0;
  int64_t num_pages = 0;  // of the longest sequence, at most

  bool operator==(const StepShape&) const = default;
};

class StepTables {
 public:
  StepTables(std::shared_ptr<PagePool> pool, const StepShape& shape);

  const StepShape& shape() const { return shape_; }
  bool keeps_int8() const { return pool_->layout().int8; }

  // caches: L x S, those of the first layer first, all of the pool; in all layers of a sequence of
  // one length, which counts the step's token. Null in all layers: no sequence; its rows of keys
  // and values go nowhere and its query sees nothing.
  // window: a query sees itself and the window - 1 keys before it; 0: off
  void update(std::span<const LayerCache* const> caches, int64_t window = 0);

  // The step's token of each sequence into its pages.
  //   k, v (S, G, D) in the pool's dtype; log_gate (S, H) f32 <= 0, undefined: no gates (log 1)
  void append(int64_t layer,
              const at::Tensor& k,
              const at::Tensor& v,
              const at::Tensor& log_gate) const;
  // q (S, H, D) of these tokens -> (S, H, D). logit_bound and options as of paged_attention.
  at::Tensor attend(int64_t layer,
                    const at::Tensor& q,
                    const at::Tensor& logit_bound = {},
                    const AttentionOptions& options = {}) const;

 private:
  void update_sequence(int64_t s, std::span<const LayerCache* const> caches);

  std::shared_ptr<PagePool> pool_;
  StepShape shape_;
  at::Tensor page_table_;          // (L, S, G, N) i32
  at::Tensor evicted_masses_;      // (L, S, H) f64
  at::Tensor evicted_norms_;       // (L, S, G) f32
  at::Tensor lengths_;             // (S) i64
  at::Tensor first_key_;           // (S) i32
  int64_t window_ = 0;             // of the update before
  std::vector<int64_t> versions_;  // of the caches that the tables show, L x S
};

}  // namespace reynard::attention
