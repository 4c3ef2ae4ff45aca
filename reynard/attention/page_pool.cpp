// The storage of cache.h.

#include "reynard/attention/cache.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/huge_pages.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace reynard::attention {

namespace {

constexpr int64_t kFirstPages = 16;

at::Tensor enlarged(const at::Tensor& t, int64_t capacity) {
  std::vector<int64_t> sizes = t.sizes().vec();
  const int64_t used = sizes[0];
  sizes[0] = capacity;
  at::Tensor larger = at::empty(sizes, t.options());
  // Cache pages are read in any order: each small page of memory would cost a walk.
  if (larger.is_cpu()) {
    tensor::advise_huge_pages(larger.data_ptr(), static_cast<int64_t>(larger.nbytes()));
  }
  larger.slice(0, 0, used).copy_(t);
  return larger;
}

}  // namespace

PagePool::PagePool(const PageLayout& layout) : layout_(layout) {
  using tensor::check_value;
  check_value(layout.head_dim > 0, "PagePool", "head_dim", layout.head_dim, "at least 1");
  check_value(layout.group > 0, "PagePool", "group", layout.group, "at least 1");
  check_value(layout.max_pages >= 0, "PagePool", "max_pages", layout.max_pages, "0 or more");
  const auto there = at::TensorOptions(layout.device);
  const auto f64 = there.dtype(at::kDouble);
  keys_ = at::empty({0, kPageTokens, layout.head_dim}, there.dtype(layout.dtype));
  values_ = at::empty({0, kPageTokens, layout.head_dim}, there.dtype(layout.dtype));
  sums_ = at::empty({0, layout.group, kPageTokens}, f64);
  norms_ = at::empty({0}, there.dtype(at::kFloat));
  masses_ = at::empty({0, layout.group}, f64);
}

void PagePool::grow(int64_t capacity) {
  const int64_t old_capacity = keys_.size(0);
  if (layout_.max_pages > 0) capacity = std::min(capacity, layout_.max_pages);
  for (at::Tensor* t : {&keys_, &values_, &sums_, &norms_, &masses_}) *t = enlarged(*t, capacity);
  users_.resize(capacity, 0);
  for (int64_t page = capacity - 1; page >= old_capacity; --page) {
    free_.push_back(static_cast<int32_t>(page));
  }
}

int32_t PagePool::allocate() {
  tensor::check_value(layout_.max_pages == 0 || in_use_ < layout_.max_pages,
                      "PagePool",
                      "pages in use",
                      in_use_,
                      "less than max_pages; shorten the sequences or raise max_pages");
  if (free_.empty()) grow(std::max(kFirstPages, 2 * keys_.size(0)));
  const int32_t page = free_.back();
  free_.pop_back();
  users_[page] = 1;
  ++in_use_;
  return page;
}

void PagePool::reserve() {
  if (keys_.size(0) < layout_.max_pages) grow(layout_.max_pages);
}

void PagePool::retain(int32_t page) {
  ++users_[page];
}

void PagePool::release(int32_t page) {
  if (--users_[page] > 0) return;
  free_.push_back(page);
  --in_use_;
}

int32_t PagePool::copy_for_writing(int32_t page) {
  const int32_t copy = allocate();
  for (const at::Tensor& t : {keys_, values_, sums_, norms_, masses_}) {
    t.select(0, copy).copy_(t.select(0, page));
  }
  release(page);
  return copy;
}

}  // namespace reynard::attention
