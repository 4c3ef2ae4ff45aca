#include "reynard/tensor/row_tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <optional>
#include <utility>

namespace reynard::tensor {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kSizes = 9;       // of blocks: kLine times powers of two
constexpr int64_t kMostKept = 32;  // blocks of a size and thread

constexpr size_t block_bytes(size_t size) {
  return kLine << size;
}

struct FreeBlock {
  FreeBlock* next;
};

// Blocks of one size that their thread may use again.
struct FreeList {
  FreeBlock* first = nullptr;
  int64_t length = 0;
};

// Has no destructor: tensors may be freed after a thread's other variables.
struct FreeLists {
  std::array<FreeList, kSizes> of_size;
  bool closed;  // the thread ends
};
thread_local constinit FreeLists free_lists = {};

// Frees the lists at the end of their thread.
struct Closer {
  ~Closer() {
    free_lists.closed = true;
    for (FreeList& list : free_lists.of_size) {
      while (list.first) std::free(std::exchange(list.first, list.first->next));
    }
  }
};

void keep(void* block, size_t size) {
  thread_local const Closer closer;
  FreeList& list = free_lists.of_size[size];
  if (free_lists.closed || list.length == kMostKept) return std::free(block);
  list.first = new (block) FreeBlock{list.first};
  ++list.length;
}

template <size_t kSize>
void give_back(void* block) {
  keep(block, kSize);
}

void* take(size_t size) {
  FreeList& list = free_lists.of_size[size];
  if (!list.first) return std::aligned_alloc(kLine, block_bytes(size));
  --list.length;
  return std::exchange(list.first, list.first->next);
}

class RowAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    size_t size = 0;
    while (size < kSizes && block_bytes(size) < num_bytes) ++size;
    if (size == kSizes) return c10::GetCPUAllocator()->allocate(num_bytes);
    void* const block = take(size);
    if (!block) throw std::bad_alloc();
    return {block, block, givers()[size], c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t num_bytes) const override {
    default_copy_data(to, from, num_bytes);
  }

 private:
  static const std::array<c10::DeleterFnPtr, kSizes>& givers() {
    static constexpr auto of_size = []<size_t... kSize>(std::index_sequence<kSize...>) {
      return std::array<c10::DeleterFnPtr, kSizes>{&give_back<kSize>...};
    }
    (std::make_index_sequence<kSizes>());
    return of_size;
  }
};

}  // namespace

at::Tensor empty_rows(at::IntArrayRef sizes, const at::TensorOptions& options) {
#if defined(__SANITIZE_ADDRESS__)
  return at::empty(sizes, options);
#else
  if (!options.device().is_cpu()) return at::empty(sizes, options);
  static RowAllocator allocator;
  return at::Tensor(at::detail::empty_generic(sizes,
                                              &allocator,
                                              c10::DispatchKeySet(c10::DispatchKey::CPU),
                                              c10::typeMetaToScalarType(options.dtype()),
                                              std::nullopt));
#endif
}

}  // namespace reynard::tensor
