// LayerCache as plain tensors, and back.

#include "reynard/attention/cache.h"
#include "reynard/tensor/check.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <utility>

namespace reynard::attention {

CacheSnapshot LayerCache::snapshot() const {
  const int64_t G = num_kv_heads(), group = pool_->layout().group, D = pool_->layout().head_dim;
  CacheSnapshot saved;
  const at::ScalarType dtype = pool_->layout().int8 ? at::kFloat : pool_->layout().dtype;
  saved.k = at::zeros({length_, G, D}, pool_->keys().options().dtype(dtype));
  saved.v = at::zeros({length_, G, D}, pool_->keys().options().dtype(dtype));
  saved.sums = at::zeros({G * group, length_}, pool_->sums().options());
  for (int64_t g = 0; g < G; ++g) {
    const Gathered kept = gather_as(g, 1, dtype);
    saved.k.slice(1, g, g + 1).slice(0, kept.begin).copy_(kept.k);
    saved.v.slice(1, g, g + 1).slice(0, kept.begin).copy_(kept.v);
    saved.sums.slice(0, g * group, (g + 1) * group).slice(1, kept.begin).copy_(kept.sums);
  }
  saved.evicted_pages = at::tensor(evicted_pages_, at::kLong);
  saved.evicted_masses = at::tensor(evicted_masses_, at::kDouble);
  saved.evicted_norms = at::tensor(evicted_norms_, at::kFloat);
  saved.query_norms = at::tensor(query_norms_, at::kFloat);
  saved.evicted_share = evicted_share_;
  saved.horizon = horizon_;
  return saved;
}

LayerCache LayerCache::restore(std::shared_ptr<PagePool> pool, const CacheSnapshot& snapshot) {
  const PageLayout layout = pool->layout();
  tensor::check_shape("cache restore", "k", snapshot.k, {{"T"}, {"G"}, {"D", layout.head_dim}});
  const int64_t T = snapshot.k.size(0), G = snapshot.k.size(1), H = G * layout.group;
  const at::ScalarType dtype = layout.int8 ? at::kFloat : layout.dtype;
  tensor::check_dtype("cache restore", "k", snapshot.k, {dtype});
  tensor::check_shape(
      "cache restore", "v", snapshot.v, {{"T", T}, {"G", G}, {"D", layout.head_dim}});
  tensor::check_dtype("cache restore", "v", snapshot.v, {dtype});
  tensor::check_shape("cache restore", "sums", snapshot.sums, {{"H", H}, {"T", T}});
  tensor::check_shape("cache restore", "evicted_pages", snapshot.evicted_pages, {{"G", G}});
  tensor::check_shape("cache restore", "evicted_masses", snapshot.evicted_masses, {{"H", H}});
  tensor::check_shape("cache restore", "evicted_norms", snapshot.evicted_norms, {{"G", G}});
  tensor::check_shape("cache restore", "query_norms", snapshot.query_norms, {{"H", H}});
  LayerCache cache(std::move(pool), G);
  for (int64_t g = 0; g < G; ++g) {
    cache.evicted_pages_[g] = snapshot.evicted_pages[g].item<int64_t>();
    cache.evicted_norms_[g] = snapshot.evicted_norms[g].item<float>();
    const int64_t pages = cache.evicted_pages_[g];  // never that of the last position
    tensor::check_value(pages == 0 || (pages > 0 && pages < pages_for(T)),
                        "cache restore",
                        "evicted_pages",
                        cache.evicted_pages_[g],
                        "fewer pages than the snapshot's length has");
  }
  for (int64_t h = 0; h < H; ++h) {
    cache.evicted_masses_[h] = snapshot.evicted_masses[h].item<double>();
    cache.query_norms_[h] = snapshot.query_norms[h].item<float>();
  }
  tensor::check_value(snapshot.horizon >= 0 && snapshot.horizon <= T,
                      "cache restore",
                      "horizon",
                      snapshot.horizon,
                      "a position of the snapshot");
  cache.evicted_share_ = snapshot.evicted_share;
  const at::Device device = layout.device;
  cache.write(snapshot.k.to(device),
              snapshot.v.to(device),
              {},
              snapshot.sums.to(device).to(at::kDouble).contiguous().unsqueeze(0));
  cache.horizon_ = snapshot.horizon;  // a write that fails truncates to the length before it, 0
  return cache;
}

}  // namespace reynard::attention
