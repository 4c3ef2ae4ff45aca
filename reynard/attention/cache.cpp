#include "reynard/attention/cache.h"

#include "reynard/attention/log_mass.h"
#include "reynard/attention/part_kernels.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/row_tensor.h"
#include "reynard/tensor/to_device.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

namespace reynard::attention {

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
  for (size_t g = 0; g < pages_.size(); ++g) {
    const std::vector<int32_t>& table = pages_[g];
    // Nothing is allocated for evicted pages, whose places a restored cache has yet to fill.
    needed += num_pages - std::max(std::ssize(table), evicted_pages_[g]);
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

}  // namespace reynard::attention
