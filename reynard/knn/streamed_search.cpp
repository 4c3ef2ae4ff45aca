#include "reynard/knn/streamed_search.h"

#include "reynard/knn/problem.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/sort.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace reynard::knn {

namespace {

// Entries [begin, end) of a ring, counted from its oldest, as a ring on the device.
KeyRing copied_block(const KeyRing& ring, int64_t begin, int64_t end, at::Device device) {
  const int64_t size = std::max<int64_t>(end - begin, 0), slots = ring.keys.size(1);
  KeyRing block{.keys = at::empty({ring.keys.size(0), size, ring.keys.size(2)},
                                  ring.keys.options().device(device).pinned_memory(false)),
                .base = ring.first + begin,
                .first = ring.first + begin,
                .next = ring.first + begin + size};
  if (size == 0) return block;
  const int64_t slot = (block.first - ring.base) % slots;
  const int64_t head = std::min(size, slots - slot);
  copy_by_heads(block.keys.narrow(1, 0, head), ring.keys.narrow(1, slot, head));
  if (head < size) {
    copy_by_heads(block.keys.narrow(1, head, size - head), ring.keys.narrow(1, 0, size - head));
  }
  return block;
}

}  // namespace

void copy_by_heads(const at::Tensor& to, const at::Tensor& from) {
  if (to.device() == from.device()) {
    to.copy_(from);
    return;
  }
  for (int64_t g = 0; g < to.size(0); ++g) to[g].copy_(from[g].contiguous());
}

at::Tensor on_device(const at::Tensor& entries, at::Device device) {
  if (entries.device() == device) return entries;
  const at::Tensor copy =
      at::empty(entries.sizes(), entries.options().device(device).pinned_memory(false));
  copy_by_heads(copy, entries);
  return copy;
}

SearchResult merged(const SearchResult& earlier, const SearchResult& later, int64_t k) {
  const at::Tensor ids = at::cat({earlier.ids, later.ids}, -1);
  const at::Tensor scores = at::cat({earlier.scores, later.scores}, -1);
  constexpr double kLowest = -std::numeric_limits<double>::infinity();
  constexpr double kHighest = std::numeric_limits<double>::infinity();
  const auto order_of = [](const at::Tensor& values, bool descending) {
    return std::get<1>(at::sort(values, /*stable=*/true, /*dim=*/-1, descending));
  };
  // What is no key comes last, behind keys that score -inf; scores that are NaN rank with these.
  const at::Tensor keys_first = order_of(ids.lt(0).to(at::kByte), /*descending=*/false);
  const at::Tensor rank =
      at::nan_to_num(scores, /*nan=*/kLowest, /*posinf=*/kHighest, /*neginf=*/kLowest);
  const at::Tensor order =
      keys_first.gather(-1, order_of(rank.gather(-1, keys_first), /*descending=*/true))
          .narrow(-1, 0, k);
  return {ids.gather(-1, order), scores.gather(-1, order)};
}

SearchResult streamed_search(const at::Tensor& queries,
                             std::span<const KeyRing> rings,
                             int64_t k,
                             int64_t block_bytes) {
  const Problem problem = make_problem(queries, rings, k);
  int64_t largest = 0;
  for (const KeyRing& ring : rings) largest = std::max(largest, ring.size());
  if (queries.numel() == 0) {
    const SearchResult none = empty_result(problem);
    return {none.ids.to(queries.device()), none.scores.to(queries.device())};
  }
  const at::Tensor& keys = rings[0].keys;
  const int64_t key_bytes = keys.size(0) * keys.size(2) * keys.element_size();
  const int64_t block_keys = std::max<int64_t>(block_bytes / (key_bytes * std::ssize(rings)), 1);
  SearchResult best;
  for (int64_t begin = 0; begin < largest; begin += block_keys) {
    std::vector<KeyRing> blocks;
    int64_t most = 0;
    for (const KeyRing& ring : rings) {
      const int64_t end = std::min(begin + block_keys, ring.size());
      blocks.push_back(copied_block(ring, begin, end, queries.device()));
      most = std::max(most, blocks.back().size());
    }
    const SearchResult found = search(queries, blocks, std::min(k, most));
    const int64_t known = best.ids.defined() ? best.ids.size(-1) : 0;
    best = known == 0 ? found : merged(best, found, std::min(k, known + found.ids.size(-1)));
  }
  return best;
}

}  // namespace reynard::knn
