// What LayerCache frees early, and the bounds that tell it.

#include "reynard/attention/cache.h"

#include "reynard/attention/log_mass.h"
#include "reynard/attention/pruning.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/to_device.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

namespace reynard::attention {

namespace {

// Pages of a head that eviction looks at first: mostly they tell how far it goes, and a head may
// have thousands.
constexpr int64_t kFirstPages = 64, kGrowth = 8;

// The next f32 above: for bounds.
float rounded_up(double x) {
  return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity());
}

}  // namespace

int64_t LayerCache::drop_front(int64_t kv_head, int64_t num_pages, const PageBounds& bounds) {
  std::vector<int32_t>& table = pages_[kv_head];
  int64_t& evicted = evicted_pages_[kv_head];
  const int64_t dropped = std::max<int64_t>(num_pages - evicted, 0);
  if (dropped == 0) return 0;
  for (; evicted < num_pages; ++evicted) {
    evicted_norms_[kv_head] =
        std::max(evicted_norms_[kv_head], page_norm(bounds, kv_head, evicted));
    pool_->release(table[evicted]);
    table[evicted] = -1;
  }
  change();
  return dropped;
}

int64_t LayerCache::evict(const at::Tensor& logit_bound, double log_tolerance, int64_t horizon) {
  const Eviction own = {.cache = this, .logit_bound = logit_bound, .horizon = horizon};
  return evict(std::span(&own, 1), log_tolerance);
}

int64_t LayerCache::evict(std::span<const Eviction> evictions, double log_tolerance) {
  tensor::check_value(
      log_tolerance < 0, "cache evict", "log_tolerance", log_tolerance, "a value < 0, such as -10");
  std::vector<const Eviction*> left;
  for (std::size_t i = 0; i < evictions.size(); ++i) {
    const auto& [cache, logit_bound, horizon] = evictions[i];
    const int64_t H = cache->num_kv_heads() * cache->pool_->layout().group;
    tensor::check_shape("cache evict", "logit_bound", logit_bound, {{"H", H}});
    tensor::check_value(horizon >= 0 && horizon <= cache->length_,
                        "cache evict",
                        "horizon",
                        horizon,
                        "between 0 and the cached length " + std::to_string(cache->length_));
    if (horizon > 0) left.push_back(&evictions[i]);
  }
  int64_t dropped = 0;
  for (int64_t pages = kFirstPages; !left.empty(); pages *= kGrowth) {
    std::vector<BoundsWanted> wanted;
    for (const Eviction* const eviction : left) {
      // The page of an earlier position may be gone.
      const int64_t position = std::max(eviction->horizon, eviction->cache->horizon_) - 1;
      wanted.push_back({.cache = eviction->cache, .position = position, .most_pages = pages});
    }
    const std::vector<PageBounds> bounds = bounds_on_host(wanted);
    std::vector<const Eviction*> further;
    for (std::size_t i = 0; i < left.size(); ++i) {
      const auto& [cache, logit_bound, horizon] = *left[i];
      dropped += cache->evict(bounds[i], logit_bound, log_tolerance, horizon);
      if (cache->has_dropped_all(bounds[i])) further.push_back(left[i]);
    }
    left = std::move(further);
  }
  return dropped;
}

// Whether of any head all pages are gone that there are bounds of, and more are left.
bool LayerCache::has_dropped_all(const PageBounds& bounds) const {
  for (int64_t g = 0; g < num_kv_heads(); ++g) {
    if (bounds.ends[g] < std::ssize(pages_[g]) && evicted_pages_[g] == bounds.ends[g]) return true;
  }
  return false;
}

int64_t LayerCache::evict(const PageBounds& bounds,
                          const at::Tensor& logit_bound,
                          double log_tolerance,
                          int64_t horizon) {
  const int64_t G = num_kv_heads(), group = pool_->layout().group;
  const at::Tensor most = logit_bound.cpu().to(at::kDouble).contiguous();
  int64_t dropped = 0;
  for (int64_t g = 0; g < G; ++g) {
    int64_t keep = std::numeric_limits<int64_t>::max();  // pages that every head of the group drops
    std::vector<double> limits;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      // Above this log mass of exp(-c_j) a later query might notice: c only falls, U bounds it.
      limits.push_back(
          eviction_limit(most.const_data_ptr<double>()[h], log_tolerance, bounds.sums[h]));
      keep = std::min(keep, prefix_within(bounds, h, limits.back()));
    }
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      evicted_masses_[h] = prefix_mass(bounds, h, keep);
      if (keep <= evicted_pages_[g]) continue;
      const double share = log_tolerance + evicted_masses_[h] - limits[h - g * group];
      evicted_share_ = std::max(evicted_share_, share);
    }
    dropped += drop_front(g, keep, bounds);
  }
  if (dropped > 0) horizon_ = std::max(horizon_, horizon);
  return dropped;
}

void LayerCache::note_queries(const at::Tensor& q) {
  const auto H = static_cast<int64_t>(query_norms_.size());
  tensor::check_shape(
      "cache note_queries", "q", q, {{"T"}, {"H", H}, {"D", pool_->layout().head_dim}});
  if (q.size(0) == 0) return;
  const at::Tensor squares = q.to(at::kDouble).square().sum(-1).amax(0).cpu();  // (H)
  for (int64_t h = 0; h < H; ++h) {
    const double norm = std::sqrt(squares.const_data_ptr<double>()[h]);
    query_norms_[h] = std::max(query_norms_[h], rounded_up(norm));
  }
}

at::Tensor LayerCache::measured_bound(double scale) const {
  const int64_t G = num_kv_heads(), group = pool_->layout().group;
  at::Tensor bound = at::empty({G * group}, at::kFloat);
  const PageBounds bounds = bounds_on_host();
  const auto num_pages = static_cast<int64_t>(pages_[0].size());
  for (int64_t g = 0; g < G; ++g) {
    float longest = evicted_norms_[g];
    for (int64_t page = evicted_pages_[g]; page < num_pages; ++page) {
      longest = std::max(longest, page_norm(bounds, g, page));
    }
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      // Before any query was seen nothing bounds them.
      const double query = query_norms_[h] > 0 ? static_cast<double>(query_norms_[h])
                                               : std::numeric_limits<double>::infinity();
      bound.mutable_data_ptr<float>()[h] = rounded_up(scale * query * std::max(longest, 1e-30F));
    }
  }
  return bound;
}

LayerCache::PageBounds LayerCache::bounds_on_host() const {
  const BoundsWanted own = {.cache = this};
  return bounds_on_host(std::span(&own, 1)).front();
}

std::vector<LayerCache::PageBounds> LayerCache::bounds_on_host(
    std::span<const BoundsWanted> wanted) {
  if (wanted.empty()) return {};
  const PagePool& pool = *wanted[0].cache->pool_;
  const bool copies = !pool.masses().is_cpu();
  std::vector<PageBounds> bounds;
  std::vector<int64_t> kept, places;  // pages; elements of sums
  for (const auto& [cache, position, most_pages] : wanted) {
    TORCH_INTERNAL_ASSERT(cache->pool_.get() == &pool);
    PageBounds& own = bounds.emplace_back();
    for (int64_t g = 0; g < cache->num_kv_heads(); ++g) {
      const std::vector<int32_t>& table = cache->pages_[g];
      const int64_t evicted = std::min(cache->evicted_pages_[g], std::ssize(table));
      own.ends.push_back(evicted + std::min(std::ssize(table) - evicted, most_pages));
      if (!copies) continue;
      own.first_rows.push_back(std::ssize(kept) - evicted);
      kept.insert(kept.end(), table.begin() + evicted, table.begin() + own.ends.back());
    }
    own.sums.resize(position < 0 ? 0 : cache->num_kv_heads() * pool.layout().group);
    for (int64_t h = 0; h < std::ssize(own.sums); ++h) {
      const int64_t group = pool.layout().group;
      const int64_t page = cache->pages_[h / group][position / kPageTokens];
      places.push_back((page * group + h % group) * kPageTokens + position % kPageTokens);
    }
  }
  at::Tensor masses = pool.masses(), norms = pool.norms(), sums;
  if (copies) {
    at::Tensor pages = at::tensor(kept, at::kLong), of_sums = at::tensor(places, at::kLong);
    at::Tensor* const moved[] = {&pages, &of_sums};
    tensor::to_device_together(moved, pool.layout().device);
    masses = masses.index_select(0, pages).flatten();
    norms = norms.index_select(0, pages).to(at::kDouble);  // exact
    sums = pool.sums().flatten().index_select(0, of_sums);
    const std::vector<int64_t> sizes = {masses.numel(), norms.numel(), sums.numel()};
    const std::vector<at::Tensor> all =
        at::cat({masses, norms, sums}).cpu().split_with_sizes(sizes);
    masses = all[0], norms = all[1].to(at::kFloat), sums = all[2];
  }
  const auto* sum = (copies ? sums : pool.sums()).const_data_ptr<double>();
  auto place = places.begin();
  for (PageBounds& own : bounds) {
    own.masses = masses, own.norms = norms;
    for (double& c : own.sums) c = copies ? *sum++ : sum[*place++];
  }
  return bounds;
}

int64_t LayerCache::row_of(const PageBounds& bounds, int64_t kv_head, int64_t page_index) const {
  return bounds.first_rows.empty() ? pages_[kv_head][page_index]
                                   : bounds.first_rows[kv_head] + page_index;
}

double LayerCache::page_mass(const PageBounds& bounds, int64_t head, int64_t page_index) const {
  const int64_t group = pool_->layout().group;
  const int64_t row = row_of(bounds, head / group, page_index);
  return bounds.masses.const_data_ptr<double>()[row * group + head % group];
}

float LayerCache::page_norm(const PageBounds& bounds, int64_t kv_head, int64_t page_index) const {
  return bounds.norms.const_data_ptr<float>()[row_of(bounds, kv_head, page_index)];
}

// The number of leading pages, evicted ones included, whose log mass stays within limit, of those
// that there are bounds of.
int64_t LayerCache::prefix_within(const PageBounds& bounds, int64_t head, double limit) const {
  const int64_t kv_head = head / pool_->layout().group;
  double mass = evicted_masses_[head];
  int64_t page = evicted_pages_[kv_head];
  for (; page < bounds.ends[kv_head]; ++page) {
    mass = log_add_exp(mass, page_mass(bounds, head, page));
    if (!(mass <= limit)) break;  // NaN keeps the page
  }
  return page;
}

double LayerCache::prefix_mass(const PageBounds& bounds, int64_t head, int64_t num_pages) const {
  double mass = evicted_masses_[head];
  for (int64_t page = evicted_pages_[head / pool_->layout().group]; page < num_pages; ++page) {
    mass = log_add_exp(mass, page_mass(bounds, head, page));
  }
  return mass;
}

int64_t LayerCache::evict_before(int64_t position, int64_t horizon) {
  tensor::check_value(horizon >= 0 && horizon <= length_,
                      "cache evict_before",
                      "horizon",
                      horizon,
                      "between 0 and the cached length " + std::to_string(length_));
  tensor::check_value(position <= std::max<int64_t>(horizon - 1, 0),
                      "cache evict_before",
                      "position",
                      position,
                      "a position before the last one below the horizon");
  const int64_t num_pages = std::max<int64_t>(position, 0) / kPageTokens;
  if (num_pages <= *std::ranges::min_element(evicted_pages_)) return 0;
  const PageBounds bounds = bounds_on_host();
  int64_t dropped = 0;
  for (int64_t g = 0; g < num_kv_heads(); ++g) dropped += drop_front(g, num_pages, bounds);
  if (dropped > 0) horizon_ = std::max(horizon_, horizon);
  return dropped;
}

}  // namespace reynard::attention
