#include "reynard/models/layer_memory.h"

#include "reynard/knn/streamed_search.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace reynard::models {

LayerMemory::LayerMemory(std::shared_ptr<const knn::Memory> earlier, int64_t capacity)
    : earlier_(std::move(earlier)), earlier_capacity_(capacity) {
  TORCH_INTERNAL_ASSERT(earlier_->num_rows() == 1);
}

// The oldest entries leave first.
int64_t LayerMemory::earlier_size() const {
  if (!earlier_) return 0;
  const int64_t held = earlier_->size(0);
  if (earlier_capacity_ == 0) return held;
  return std::clamp<int64_t>(earlier_capacity_ - own_size(), 0, held);
}

std::vector<LayerMemory::Part> LayerMemory::parts() const {
  std::vector<Part> parts;
  const int64_t shown = earlier_size();
  if (shown > 0) parts.push_back({earlier_.get(), earlier_->size(0) - shown, 0, shown});
  if (own_size() > 0) parts.push_back({&*own_, 0, shown, own_size()});
  return parts;
}

bool LayerMemory::copies_keys() const {
  return std::ranges::any_of(parts(), [](const Part& part) {
    return part.memory->options().keys_device() != part.memory->options().device;
  });
}

knn::SearchResult LayerMemory::search(const at::Tensor& queries, int64_t k) const {
  knn::SearchResult best;
  for (const Part& part : parts()) {
    std::vector<knn::KeyRing> rings = part.memory->key_rings();
    rings[0].first = part.first_id();
    knn::SearchResult found = knn::search(queries, rings, std::min(k, part.size));
    // What is no key stays -1.
    found.ids = at::where(found.ids.ge(0), found.ids - (part.first_id() - part.begin), found.ids);
    best = best.ids.defined() ? knn::merged(best, found, std::min(k, part.end())) : found;
  }
  return best;
}

knn::Entries LayerMemory::gather(const at::Tensor& ids) const {
  knn::Entries all;
  for (const Part& part : parts()) {
    const at::Tensor here = ids.ge(part.begin).logical_and(ids.lt(part.end()));
    const at::Tensor own_ids =
        at::where(here, ids + (part.first_id() - part.begin), at::full_like(ids, -1));
    const knn::Entries found = part.memory->gather(own_ids);
    // Zeros where the id is not of this part.
    all =
        all.keys.defined() ? knn::Entries{all.keys + found.keys, all.values + found.values} : found;
  }
  return all;
}

std::vector<LayerMemory::Piece> LayerMemory::pieces() const {
  std::vector<Piece> pieces;
  for (const Part& part : parts()) std::ranges::copy(pieces_of(part), std::back_inserter(pieces));
  return pieces;
}

std::vector<LayerMemory::Piece> LayerMemory::pieces_of(const Part& part) {
  const knn::MemoryOptions& options = part.memory->options();
  const knn::MemoryLayer& of = options.of;
  const bool copies =
      options.keys_device() != options.device || options.values_device() != options.device;
  const auto entry_bytes =
      of.num_heads * of.head_dim * static_cast<int64_t>(c10::elementSize(of.dtype));
  const int64_t at_once =
      copies ? std::max<int64_t>(knn::kStreamedBytes / entry_bytes, 1) : part.size;
  std::vector<Piece> pieces;
  for (int64_t begin = part.begin; begin < part.end(); begin += at_once) {
    pieces.push_back({begin, std::min(at_once, part.end() - begin)});
  }
  return pieces;
}

knn::Entries LayerMemory::entries(const Piece& piece) const {
  for (const Part& part : parts()) {
    if (piece.begin < part.begin || piece.begin >= part.end()) continue;
    return part.memory->entries(0, part.skipped + piece.begin - part.begin, piece.size);
  }
  TORCH_INTERNAL_ASSERT(false, "no entries at ", piece.begin);
}

// Entries of its own, such as keys (T,G,D) and kept as `store` says; those that there are are
// copied.
knn::Memory LayerMemory::begin_own(const at::Tensor& keys, const MemoryStore& store) const {
  knn::Memory own({.of = {.model = {},
                          .layer = 0,
                          .num_heads = keys.size(1),
                          .head_dim = keys.size(2),
                          .dtype = keys.scalar_type()},
                   .capacity = store.capacity,
                   .device = keys.device(),
                   .place = store.place});
  if (store.coded) own.code_keys();
  if (expected_ > 0) own.reserve(expected_);
  if (own_size() == 0) return own;
  for (const Piece& piece : pieces_of(parts().back())) {  // the last part is its own
    const knn::Entries held = entries(piece);
    own.add(held.keys.unsqueeze(0), held.values.unsqueeze(0));
  }
  return own;
}

// What cannot be added changes nothing.
void LayerMemory::append(const at::Tensor& keys,
                         const at::Tensor& values,
                         const MemoryStore& store) {
  const bool as_kept = own_ && own_->options().capacity == store.capacity &&
                       own_->options().place == store.place && coded_ == store.coded;
  if (as_kept) {
    own_->add(keys.unsqueeze(0), values.unsqueeze(0));
  } else {
    knn::Memory own = begin_own(keys, store);
    own.add(keys.unsqueeze(0), values.unsqueeze(0));
    own_ = std::move(own);
    coded_ = store.coded;
  }
}

void LayerMemory::add(const at::Tensor& keys,
                      const at::Tensor& values,
                      const at::Tensor& context_sums,
                      const MemoryStore& store) {
  if (!failure_.empty()) return;
  try {
    append(keys, values, store);
  } catch (const knn::NotFinite& error) {
    failure_ = error.what();
    return;
  }
  earlier_capacity_ = store.capacity;
  if (!context_sums.defined()) return;
  const at::Tensor from_start =
      window_sums_.defined() ? context_sums + window_sums_.unsqueeze(1) : context_sums;
  const at::Tensor all = sums_.defined() ? at::cat({sums_, from_start}, 1) : from_start;
  // Contiguous: what is forgotten must not stay in memory.
  sums_ = all.narrow(1, all.size(1) - size(), size()).contiguous();
  window_sums_ = from_start.select(1, -1).clone();
}

}  // namespace reynard::models
