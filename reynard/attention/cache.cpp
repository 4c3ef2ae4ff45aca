#include "reynard/attention/cache.h"

#include "reynard/attention/log_mass.h"
#include "reynard/attention/part_kernels.h"
#include "reynard/attention/pruning.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/row_tensor.h"
#include "reynard/tensor/to_device.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace reynard::attention {

namespace {

int64_t pages_for(int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

// The next f32 above: for bounds.
float rounded_up(double x) {
  return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity());
}

}  // namespace

LayerCache::LayerCache(std::shared_ptr<PagePool> pool, int64_t num_kv_heads)
    : pool_(std::move(pool)) {
  tensor::check_value(num_kv_heads > 0, "LayerCache", "num_kv_heads", num_kv_heads, "at least 1");
  const int64_t num_heads = num_kv_heads * pool_->layout().group;
  pages_.resize(num_kv_heads);
  evicted_pages_.resize(num_kv_heads, 0);
  evicted_norms_.resize(num_kv_heads, 0);
  evicted_masses_.resize(num_heads, kNoMass);
  query_norms_.resize(num_heads, 0);
  change();
}

LayerCache& LayerCache::operator=(LayerCache&& other) noexcept {
  if (this == &other) return *this;
  release_all();
  pool_ = std::move(other.pool_);
  pages_ = std::exchange(other.pages_, {});
  evicted_pages_ = std::move(other.evicted_pages_);
  evicted_masses_ = std::move(other.evicted_masses_);
  evicted_norms_ = std::move(other.evicted_norms_);
  query_norms_ = std::move(other.query_norms_);
  evicted_share_ = other.evicted_share_;
  length_ = std::exchange(other.length_, 0);
  horizon_ = std::exchange(other.horizon_, 0);
  version_ = other.version_;
  return *this;
}

LayerCache::~LayerCache() {
  release_all();
}

void LayerCache::change() {
  static std::atomic<int64_t> last = 0;
  version_ = ++last;
}

void LayerCache::release_all() {
  for (std::vector<int32_t>& table : pages_) {
    for (const int32_t page : table) {
      if (page >= 0) pool_->release(page);
    }
    table.clear();
  }
}

LayerCache LayerCache::fork() const {
  LayerCache copy(pool_, num_kv_heads());
  copy.pages_ = pages_;
  copy.evicted_pages_ = evicted_pages_;
  copy.evicted_masses_ = evicted_masses_;
  copy.evicted_norms_ = evicted_norms_;
  copy.query_norms_ = query_norms_;
  copy.evicted_share_ = evicted_share_;
  copy.length_ = length_;
  copy.horizon_ = horizon_;
  for (const std::vector<int32_t>& table : pages_) {
    for (const int32_t page : table) {
      if (page >= 0) pool_->retain(page);
    }
  }
  return copy;
}

void LayerCache::append(const at::Tensor& k, const at::Tensor& v, const at::Tensor& log_gate) {
  const PageLayout& layout = pool_->layout();
  const int64_t G = num_kv_heads(), H = G * layout.group, D = layout.head_dim;
  tensor::check_shape("cache append", "k", k, {{"T"}, {"G", G}, {"D", D}});
  const int64_t T = k.size(0);
  tensor::check_shape("cache append", "v", v, {{"T", T}, {"G", G}, {"D", D}});
  tensor::check_dtype("cache append", "k", k, {layout.dtype});
  tensor::check_dtype("cache append", "v", v, {layout.dtype});
  if (log_gate.defined()) {
    tensor::check_shape("cache append", "log_gate", log_gate, {{"T", T}, {"H", H}});
    tensor::check_dtype("cache append", "log_gate", log_gate, {at::kFloat});
  }
  for (const auto& [arg, t] :
       {std::pair("k", &k), std::pair("v", &v), std::pair("log_gate", &log_gate)}) {
    tensor::check_device("cache append", arg, *t, "the pages", pool_->keys().device());
  }
  write(k, v, log_gate.defined() ? log_gate.contiguous() : log_gate, {});
}

void LayerCache::extend(int64_t tokens) {
  prepare_pages(length_ + tokens);
  length_ += tokens;
}

void LayerCache::prepare_pages(int64_t new_length) {
  try {
    take_pages(new_length);
  } catch (...) {
    truncate(length_);  // no pages that hold nothing
    throw;
  }
}

void LayerCache::take_pages(int64_t new_length) {
  const int64_t num_pages = pages_for(new_length);
  const bool partial = length_ % kPageTokens != 0 && new_length > length_;
  int64_t needed = 0;
  for (const std::vector<int32_t>& table : pages_) {
    needed += num_pages - static_cast<int64_t>(table.size());
    if (partial && table.back() >= 0 && pool_->num_users(table.back()) > 1) ++needed;
  }
  const int64_t max_pages = pool_->layout().max_pages;
  // Before anything is written: a full pool leaves the cache as it was.
  tensor::check_value(max_pages == 0 || pool_->pages_in_use() + needed <= max_pages,
                      "cache append",
                      "pages needed",
                      pool_->pages_in_use() + needed,
                      "at most max_pages; shorten the sequences or raise max_pages");
  for (size_t g = 0; g < pages_.size(); ++g) {
    std::vector<int32_t>& table = pages_[g];
    if (partial && table.back() >= 0 && pool_->num_users(table.back()) > 1) {
      table.back() = pool_->copy_for_writing(table.back());
      change();
    }
    while (static_cast<int64_t>(table.size()) < num_pages) {
      const bool evicted = static_cast<int64_t>(table.size()) < evicted_pages_[g];
      const int32_t last = table.empty() ? -1 : table.back();
      table.push_back(evicted ? -1 : pool_->allocate(last));
      change();
    }
  }
}

void LayerCache::write(const at::Tensor& k,
                       const at::Tensor& v,
                       const at::Tensor& log_gate,
                       const at::Tensor& token_sums) {
  const int64_t T = k.size(0), G = num_kv_heads();
  if (T == 0) return;
  // From the page of the last token on, whose sums run on.
  const int64_t first_page = std::max<int64_t>(length_ - 1, 0) / kPageTokens;
  const int64_t length = length_ + T, num_pages = pages_for(length) - first_page;
  prepare_pages(length);
  PageWrite tokens = {.keys = pool_->keys(),
                      .values = pool_->values(),
                      .sums = pool_->sums(),
                      .norms = pool_->norms(),
                      .masses = pool_->masses(),
                      .scales = pool_->scales(),
                      .page_table = tensor::empty_rows({1, G, num_pages}, at::kInt),
                      .lengths = tensor::empty_rows({1}, at::kLong),
                      .k = k.contiguous(),
                      .v = v.contiguous(),
                      .log_gate = log_gate,
                      .token_sums = token_sums};
  *tokens.lengths.mutable_data_ptr<int64_t>() = length - first_page * kPageTokens;
  for (int64_t g = 0; g < G; ++g) {
    std::copy_n(pages_[g].begin() + first_page,
                num_pages,
                tokens.page_table.mutable_data_ptr<int32_t>() + g * num_pages);
  }
  if (!pool_->keys().is_cpu()) {
    at::Tensor* const tables[] = {&tokens.page_table, &tokens.lengths};
    tensor::to_device_together(tables, pool_->layout().device);
  }
  part_kernels(pool_->keys()).write_pages(tokens);
  length_ = length;
}

at::Tensor LayerCache::sums_at(int64_t position) const {
  std::vector<int64_t> pages;
  for (const std::vector<int32_t>& table : pages_) pages.push_back(table[position / kPageTokens]);
  const at::Tensor index = tensor::to_device(at::tensor(pages, at::kLong), pool_->layout().device);
  const at::Tensor sums = pool_->sums().index_select(0, index).select(2, position % kPageTokens);
  return sums.reshape({-1}).contiguous();
}

void LayerCache::truncate(int64_t length) {
  tensor::check_value(length >= 0 && length <= length_,
                      "cache truncate",
                      "length",
                      length,
                      "between 0 and the cached length " + std::to_string(length_));
  tensor::check_value(length >= horizon_,
                      "cache truncate",
                      "length",
                      length,
                      "at least the eviction horizon " + std::to_string(horizon_) +
                          ": what lies before it decided which pages were dropped");
  for (size_t g = 0; g < pages_.size(); ++g) {
    while (static_cast<int64_t>(pages_[g].size()) > pages_for(length)) {
      if (pages_[g].back() >= 0) pool_->release(pages_[g].back());
      pages_[g].pop_back();
      change();
    }
  }
  length_ = length;
}

int64_t LayerCache::drop_front(int64_t kv_head, int64_t num_pages) {
  std::vector<int32_t>& table = pages_[kv_head];
  int64_t& evicted = evicted_pages_[kv_head];
  const int64_t dropped = std::max<int64_t>(num_pages - evicted, 0);
  if (dropped == 0) return 0;
  const PageValues norms = on_host(pool_->norms());
  for (; evicted < num_pages; ++evicted) {
    evicted_norms_[kv_head] = std::max(evicted_norms_[kv_head], page_norm(norms, kv_head, evicted));
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
  const at::Tensor bounds = logit_bound.cpu().to(at::kDouble).contiguous();
  const PageValues masses = on_host(pool_->masses());
  const at::Tensor sums = sums_at(horizon - 1).cpu();
  int64_t dropped = 0;
  for (int64_t g = 0; g < G; ++g) {
    int64_t keep = std::numeric_limits<int64_t>::max();  // pages that every head of the group drops
    std::vector<double> limits;
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      // Above this log mass of exp(-c_j) a later query might notice: c only falls, U bounds it.
      limits.push_back(eviction_limit(
          bounds.const_data_ptr<double>()[h], log_tolerance, sums.const_data_ptr<double>()[h]));
      keep = std::min(keep, prefix_within(masses, h, limits.back()));
    }
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      evicted_masses_[h] = prefix_mass(masses, h, keep);
      if (keep <= evicted_pages_[g]) continue;
      const double share = log_tolerance + evicted_masses_[h] - limits[h - g * group];
      evicted_share_ = std::max(evicted_share_, share);
    }
    dropped += drop_front(g, keep);
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
  const PageValues norms = on_host(pool_->norms());
  const auto num_pages = static_cast<int64_t>(pages_[0].size());
  for (int64_t g = 0; g < G; ++g) {
    float longest = evicted_norms_[g];
    for (int64_t page = evicted_pages_[g]; page < num_pages; ++page) {
      longest = std::max(longest, page_norm(norms, g, page));
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

LayerCache::PageValues LayerCache::on_host(const at::Tensor& values) const {
  if (values.is_cpu()) return {.values = values};
  std::vector<int64_t> ids;
  for (const std::vector<int32_t>& table : pages_) {
    for (const int32_t page : table) ids.push_back(std::max(page, 0));  // evicted: any will do
  }
  const at::Tensor index = tensor::to_device(at::tensor(ids, at::kLong), values.device());
  return {.values = values.index_select(0, index).cpu(), .are_copies = true};
}

int64_t LayerCache::row_of(const PageValues& values, int64_t kv_head, int64_t page_index) const {
  const std::vector<int32_t>& pages = pages_[kv_head];
  return values.are_copies ? kv_head * std::ssize(pages) + page_index : pages[page_index];
}

double LayerCache::page_mass(const PageValues& masses, int64_t head, int64_t page_index) const {
  const int64_t group = pool_->layout().group;
  const int64_t row = row_of(masses, head / group, page_index);
  return masses.values.const_data_ptr<double>()[row * group + head % group];
}

float LayerCache::page_norm(const PageValues& norms, int64_t kv_head, int64_t page_index) const {
  return norms.values.const_data_ptr<float>()[row_of(norms, kv_head, page_index)];
}

// The number of leading pages, evicted ones included, whose log mass stays within limit.
int64_t LayerCache::prefix_within(const PageValues& masses, int64_t head, double limit) const {
  const int64_t kv_head = head / pool_->layout().group;
  double mass = evicted_masses_[head];
  int64_t page = evicted_pages_[kv_head];
  for (; page < static_cast<int64_t>(pages_[kv_head].size()); ++page) {
    mass = log_add_exp(mass, page_mass(masses, head, page));
    if (!(mass <= limit)) break;  // NaN keeps the page
  }
  return page;
}

double LayerCache::prefix_mass(const PageValues& masses, int64_t head, int64_t num_pages) const {
  double mass = evicted_masses_[head];
  for (int64_t page = evicted_pages_[head / pool_->layout().group]; page < num_pages; ++page) {
    mass = log_add_exp(mass, page_mass(masses, head, page));
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
  int64_t dropped = 0;
  for (int64_t g = 0; g < num_kv_heads(); ++g) {
    dropped += drop_front(g, std::max<int64_t>(position, 0) / kPageTokens);
  }
  if (dropped > 0) horizon_ = std::max(horizon_, horizon);
  return dropped;
}

LayerCache::Gathered LayerCache::gather(int64_t kv_head) const {
  Gathered one = gather(kv_head, 1);
  one.k = one.k.select(1, 0);
  one.v = one.v.select(1, 0);
  return one;
}

LayerCache::Gathered LayerCache::gather(int64_t first_head, int64_t num_heads) const {
  return gather_as(first_head, num_heads, pool_->layout().dtype);
}

at::Tensor LayerCache::gather_sums(int64_t first_head, int64_t num_heads) const {
  return sums_of(kept_pages(first_head, num_heads), first_head, num_heads);
}

// Ids of the pages of heads that begin alike, head by head.
at::Tensor LayerCache::kept_pages(int64_t first_head, int64_t num_heads) const {
  std::vector<int64_t> kept;
  for (int64_t g = first_head; g < first_head + num_heads; ++g) {
    TORCH_INTERNAL_ASSERT(begin(g) == begin(first_head), "heads that begin elsewhere");
    std::copy_if(pages_[g].begin(), pages_[g].end(), std::back_inserter(kept), [](int32_t page) {
      return page >= 0;
    });
  }
  return tensor::to_device(at::tensor(kept, at::kLong), pool_->layout().device);
}

at::Tensor LayerCache::sums_of(const at::Tensor& pages,
                               int64_t first_head,
                               int64_t num_heads) const {
  const int64_t group = pool_->layout().group, num_pages = pages.size(0) / num_heads;
  return pool_->sums()
      .index_select(0, pages)
      .view({num_heads, num_pages, group, kPageTokens})
      .transpose(1, 2)
      .reshape({num_heads * group, num_pages * kPageTokens})
      .narrow(1, 0, length_ - begin(first_head));
}

LayerCache::Gathered LayerCache::gather_as(int64_t first_head,
                                           int64_t num_heads,
                                           at::ScalarType dtype) const {
  const at::Tensor pages = kept_pages(first_head, num_heads);
  const int64_t rows = pages.size(0) / num_heads * kPageTokens, T = length_ - begin(first_head);
  const int64_t D = pool_->layout().head_dim;
  // which: keys 0, values 1
  const auto in_order = [&](at::Tensor kept, int64_t which) {
    if (pool_->layout().int8) {
      const at::Tensor scales = pool_->scales().index_select(0, pages).select(1, which);
      kept = kept.to(at::kFloat).mul_(scales.unsqueeze(2)).to(dtype);
    }
    return kept.view({num_heads, rows, D}).narrow(1, 0, T).transpose(0, 1);
  };
  const PageRows kept =
      part_kernels(pool_->keys()).read_pages(pool_->keys(), pool_->values(), pages, D);
  return {.k = in_order(kept.keys, 0),
          .v = in_order(kept.values, 1),
          .sums = sums_of(pages, first_head, num_heads),
          .begin = begin(first_head)};
}

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
  cache.horizon_ = snapshot.horizon;
  const at::Device device = layout.device;
  cache.write(snapshot.k.to(device),
              snapshot.v.to(device),
              {},
              snapshot.sums.to(device).to(at::kDouble).contiguous().unsqueeze(0));
  return cache;
}

}  // namespace reynard::attention
