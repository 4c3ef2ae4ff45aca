// The storage of cache.h.

#include "reynard/attention/attention.h"
#include "reynard/attention/cache.h"
#include "reynard/attention/cpu/page_words.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/huge_pages.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <vector>

namespace reynard::attention {

namespace {

// Neighbouring pages that a list of pages takes one after the other: they are read a third faster
// than pages from anywhere, since the processor asks for what lies behind.
constexpr int64_t kStretchPages = 16;
constexpr int64_t kFirstPages = kStretchPages;

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

// Of pages in host memory.
int64_t values_per_word(const PageLayout& layout) {
  const size_t bytes = layout.int8 ? sizeof(int8_t) : c10::elementSize(layout.dtype);
  return static_cast<int64_t>(sizeof(uint32_t) / bytes);
}

}  // namespace

int64_t row_bytes(const PageLayout& layout) {
  const int64_t width = layout.device.is_cpu() ? cpu::padded_row(layout.head_dim) : layout.head_dim;
  if (layout.int8) return width + static_cast<int64_t>(sizeof(float));
  return width * static_cast<int64_t>(c10::elementSize(layout.dtype));
}

PagePool::PagePool(const PageLayout& layout) : layout_(layout) {
  using tensor::check_value;
  check_value(layout.head_dim >= 1 && layout.head_dim <= kLargestHeadDim,
              "PagePool",
              "head_dim",
              layout.head_dim,
              "1 to " + std::to_string(kLargestHeadDim));
  check_value(
      layout.dtype == at::kFloat || layout.dtype == at::kBFloat16 || layout.dtype == at::kHalf,
      "PagePool",
      "dtype",
      c10::toString(layout.dtype),
      "Float, BFloat16 or Half");
  check_value(layout.group > 0, "PagePool", "group", layout.group, "at least 1");
  check_value(layout.max_pages >= 0, "PagePool", "max_pages", layout.max_pages, "0 or more");
  const auto there = at::TensorOptions(layout.device);
  const auto f64 = there.dtype(at::kDouble);
  check_value(!layout.int8 || layout.device.is_cpu(),
              "PagePool",
              "device of int8 pages",
              layout.device.str(),
              "cpu; a GPU keeps pages in the dtype of its products");
  const auto rows = there.dtype(layout.int8 ? at::kChar : layout.dtype);
  if (layout.device.is_cpu()) {
    const int64_t width = cpu::padded_row(layout.head_dim), n = values_per_word(layout);
    keys_ = at::empty({0, width / n, kPageTokens, n}, rows);
    values_ = at::empty({0, kPageTokens / n, width, n}, rows);
  } else {
    keys_ = at::empty({0, kPageTokens, layout.head_dim}, rows);
    values_ = at::empty({0, kPageTokens, layout.head_dim}, rows);
  }
  if (layout.int8) scales_ = at::empty({0, 2, kPageTokens}, there.dtype(at::kFloat));
  sums_ = at::empty({0, layout.group, kPageTokens}, f64);
  norms_ = at::empty({0}, there.dtype(at::kFloat));
  masses_ = at::empty({0, layout.group}, f64);
}

std::vector<at::Tensor*> PagePool::storage() {
  std::vector<at::Tensor*> all = {&keys_, &values_, &sums_, &norms_, &masses_};
  if (scales_.defined()) all.push_back(&scales_);
  return all;
}

// Changes nothing where memory runs out.
void PagePool::grow(int64_t capacity) {
  const int64_t old_capacity = std::ssize(users_);
  if (layout_.max_pages > 0) capacity = std::min(capacity, layout_.max_pages);
  const std::vector<at::Tensor*> tensors = storage();
  std::vector<at::Tensor> larger;
  larger.reserve(tensors.size());
  for (const at::Tensor* t : tensors) larger.push_back(enlarged(*t, capacity));
  ++num_growths_;
  users_.resize(capacity, 0);
  for (size_t i = 0; i < tensors.size(); ++i) *tensors[i] = larger[i];
  for (int64_t page = old_capacity; page < capacity; page += kStretchPages) {
    const auto stretch = static_cast<int32_t>(std::ssize(free_in_stretch_));
    free_in_stretch_.push_back(std::min(capacity - page, kStretchPages));
    empty_stretches_.insert(stretch);
  }
}

int32_t PagePool::free_page(int32_t last) const {
  const int32_t next = last + 1;
  if (next % kStretchPages != 0 && next < std::ssize(users_) && users_[next] == 0) return next;
  if (!empty_stretches_.empty()) return *empty_stretches_.begin() * kStretchPages;
  const auto first = users_.begin() + *begun_stretches_.begin() * kStretchPages;
  return static_cast<int32_t>(std::find(first, users_.end(), 0) - users_.begin());
}

int32_t PagePool::allocate(int32_t last) {
  tensor::check_value(layout_.max_pages == 0 || in_use_ < layout_.max_pages,
                      "PagePool",
                      "pages in use",
                      in_use_,
                      "less than max_pages; shorten the sequences or raise max_pages");
  const int64_t capacity = std::ssize(users_);
  if (in_use_ == capacity) grow(std::max(kFirstPages, 2 * capacity));
  const int32_t page = free_page(last);
  const auto stretch = static_cast<int32_t>(page / kStretchPages);
  if (empty_stretches_.erase(stretch) > 0) begun_stretches_.insert(stretch);
  if (--free_in_stretch_[stretch] == 0) begun_stretches_.erase(stretch);
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
  const auto stretch = static_cast<int32_t>(page / kStretchPages);
  const int64_t first = stretch * kStretchPages;
  begun_stretches_.insert(stretch);
  if (++free_in_stretch_[stretch] == std::min(std::ssize(users_) - first, kStretchPages)) {
    begun_stretches_.erase(stretch);
    empty_stretches_.insert(stretch);
  }
  --in_use_;
}

int32_t PagePool::copy_for_writing(int32_t page) {
  const int32_t copy = allocate();
  for (const at::Tensor* t : storage()) t->select(0, copy).copy_(t->select(0, page));
  release(page);
  return copy;
}

}  // namespace reynard::attention
