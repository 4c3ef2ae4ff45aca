#include "reynard/attention/cpu/scratch.h"

#include <ATen/ops/empty.h>
#include <sys/mman.h>

#include <utility>

namespace reynard::attention::cpu {

namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

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
  auto* data = static_cast<char*>(storage.data_ptr());
  char* begin = aligned(data, kHugePage);
  const int64_t whole = (data + bytes - begin) / kHugePage * kHugePage;
  // Advice only: without huge pages the memory works all the same.
  if (whole > 0) madvise(begin, whole, MADV_HUGEPAGE);
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
