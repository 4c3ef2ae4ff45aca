#pragma once
// Search on a GPU of keys that lie in host memory, pinned or mapped from a file: they cross the bus
// block by block, and the best of each block join the best so far. The results are those of keys on
// the device, to the bit; what is needed there is one block and not all keys.

#include "reynard/knn/search.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace reynard::knn {

// Bytes of one block: long enough for the bus, and little beside what a GPU holds.
inline constexpr int64_t kStreamedBytes = 256 << 20;

// As search(), for queries on a GPU and rings of keys on the CPU.
SearchResult streamed_search(const at::Tensor& queries,
                             std::span<const KeyRing> rings,
                             int64_t k,
                             int64_t block_bytes = kStreamedBytes);

// The k best of two results (B,Tq,H,*) whose keys differ; k at most the sum of their sizes. Each
// lists equal scores by ascending id, and every id of `later` is above all of `earlier`.
SearchResult merged(const SearchResult& earlier, const SearchResult& later, int64_t k);

// Copies keys or values (G,n,D), across the bus head by head: entries of one are one piece of
// memory, which pinned memory sends and receives as it lies.
void copy_by_heads(const at::Tensor& to, const at::Tensor& from);
// Keys or values (G,n,D) on a device: what lies there already, or a copy.
at::Tensor on_device(const at::Tensor& entries, at::Device device);

}  // namespace reynard::knn
