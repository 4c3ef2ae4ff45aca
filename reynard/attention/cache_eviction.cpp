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

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace reynard::attention {

namespace {

// The next f32 above: for bounds.
float rounded_up(double x) {
  return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity());
}

}  // namespace

at::Tensor LayerCache::sums_at(int64_t position) const {
  std::vector<int64_t> pages;
  for (const std::vector<int32_t>& table : pages_) pages.push_back(table[position / kPageTokens]);
  const at::Tensor index = tensor::to_device(at::tensor(pages, at::kLong), pool_->layout().device);
  const at::Tensor sums = pool_->sums().index_select(0, index).select(2, position % kPageTokens);
  return sums.reshape({-1}).contiguous();
}

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
  const int64_t G = num_kv_heads(), group = pool_->layout().group;
  tensor::check_shape("cache evict", "logit_bound", logit_bound, {{"H", G * group}});
  tensor::check_value(
      log_tolerance < 0, "cache evict", "log_tolerance", log_tolerance, "a value < 0, such as -10");
  tensor::check_value(horizon >= 0 && horizon <= length_,
                      "cache evict",
                      "horizon",
                      horizon,
                      "between 0 and the cached length " + std::to_string(length_));
  if (horizon == 0) return 0;
  horizon = std::max(horizon, horizon_);  // the page of an earlier position may be gone
  const PageBounds bounds = bounds_on_host({logit_bound, sums_at(horizon - 1)});
  const auto* most = bounds.others[0].const_data_ptr<double>();
  const auto* sums = bounds.others[1].const_data_ptr<double>();
  int64_t dropped = 0;
  for (int64_t g = 0; g < G; ++g) {
    int64_t keep = std::numeric_limits<int64_t>::max();  // pages that every head of the group drops
    std::vector<double> limits;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      // Above this log mass of exp(-c_j) a later query might notice: c only falls, U bounds it.
      limits.push_back(eviction_limit(most[h], log_tolerance, sums[h]));
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

LayerCache::PageBounds LayerCache::bounds_on_host(const std::vector<at::Tensor>& others) const {
  PageBounds bounds;
  if (pool_->masses().is_cpu()) {
    bounds.masses = pool_->masses(), bounds.norms = pool_->norms();
    for (const at::Tensor& t : others) {
      bounds.others.push_back(t.to(at::kCPU, at::kDouble).contiguous());
    }
    return bounds;
  }
  std::vector<int64_t> kept;
  for (int64_t g = 0; g < num_kv_heads(); ++g) {
    bounds.first_rows.push_back(std::ssize(kept) - evicted_pages_[g]);
    const auto begin = pages_[g].begin() + std::min(evicted_pages_[g], std::ssize(pages_[g]));
    kept.insert(kept.end(), begin, pages_[g].end());
  }
  const at::Device device = pool_->layout().device;
  const at::Tensor index = tensor::to_device(at::tensor(kept, at::kLong), device);
  std::vector<at::Tensor> values = {pool_->masses().index_select(0, index),
                                    pool_->norms().index_select(0, index)};
  for (const at::Tensor& t : others) values.push_back(tensor::to_device(t, device));
  std::vector<int64_t> sizes;
  for (at::Tensor& t : values) {
    t = t.to(at::kDouble).flatten();  // exact
    sizes.push_back(t.numel());
  }
  values = at::cat(values).cpu().split_with_sizes(sizes);
  bounds.masses = values[0], bounds.norms = values[1].to(at::kFloat);
  bounds.others.assign(values.begin() + 2, values.end());
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

// The number of leading pages, evicted ones included, whose log mass stays within limit.
int64_t LayerCache::prefix_within(const PageBounds& bounds, int64_t head, double limit) const {
  const int64_t kv_head = head / pool_->layout().group;
  double mass = evicted_masses_[head];
  int64_t page = evicted_pages_[kv_head];
  for (; page < static_cast<int64_t>(pages_[kv_head].size()); ++page) {
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
