#include "reynard/attention/cpu/scratch.h"

#include "reynard/tensor/huge_pages.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace reynard::attention::cpu {

namespace {

at::Tensor& kept_storage() {
  thread_local at::Tensor kept;
  return kept;
}

char* aligned(char* data, int64_t alignment) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return data + (alignment - address % alignment) % alignment;
}

at::Tensor allocate(int64_t bytes) {
  at::Tensor storage = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  tensor::advise_huge_pages(storage.data_ptr(), bytes);
  return storage;
}

}  // namespace

Scratch::Scratch(int64_t bytes) : storage_(std::exchange(kept_storage(), at::Tensor())) {
  const int64_t wanted = bytes + kAlignment;
  if (!storage_.defined() || storage_.numel() < wanted) {
    storage_ = at::Tensor();
    storage_ = allocate(wanted);
  }
  next_ = aligned(static_cast<char*>(storage_.data_ptr()), kAlignment);
  left_ = bytes;
}

Scratch::~Scratch() {
  if (storage_.numel() <= kKeptBytes) kept_storage() = std::move(storage_);
}

char* Scratch::take(int64_t bytes) {
  TORCH_INTERNAL_ASSERT(padded(bytes) <= left_);
  char* taken = next_;
  next_ += padded(bytes);
  left_ -= padded(bytes);
  return taken;
}

}  // namespace reynard::attention::cpu
