#pragma once
// What left the local contexts of a layer (mixer memory_attention): the memory of one sequence,
// oldest entries first, where a memory that was read before (models/saved_memory.h) may come ahead
// of the sequence's own entries. Inference only. Shapes: M entries, G key/value heads, H query
// heads, T tokens, D head dimension.

#include "reynard/knn/memory.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace reynard::models {

// How a decoder keeps the memories of its sequences.
struct MemoryStore {
  int64_t capacity = 0;  // newest entries that are kept; 0: all
  knn::MemoryPlace place = knn::MemoryPlace::kDevice;
  bool coded = false;  // int8 codes beside the keys (knn::Memory::code_keys); on the CPU only
};

// Copies, those of forks, share entries until one of them writes where another reads
// (knn/memory.h).
class LayerMemory {
 public:
  LayerMemory() = default;
  // Begins with the newest `capacity` entries of a memory of one row that nobody changes any more;
  // 0: all.
  LayerMemory(std::shared_ptr<const knn::Memory> earlier, int64_t capacity);

  int64_t size() const { return earlier_size() + own_size(); }  // M
  // What of an addition was not finite, as an error's message; empty: nothing. Nothing is added any
  // more then, and attention to the memory is NaN.
  const std::string& failure() const { return failure_; }

  // Whether a search copies keys to the device.
  bool copies_keys() const;
  // The k best keys of queries (1,T,H,D), as knn::search(); ids count from the oldest entry.
  // k at most size().
  knn::SearchResult search(const at::Tensor& queries, int64_t k) const;
  // Keys and values (1,T,H,k,D) of the ids that search() gave; zeros where the id is -1.
  knn::Entries gather(const at::Tensor& ids) const;

  // How attention over all entries reads them: one piece, or several where they lie in several
  // memories or have to be copied to the device, so that no more than one piece is there at once.
  struct Piece {
    int64_t begin = 0, size = 0;
  };
  std::vector<Piece> pieces() const;
  // Keys without positions and values (size,G,D) of a piece, on the device; valid until the memory
  // changes.
  knn::Entries entries(const Piece& piece) const;

  // (H,M) f64: gate sums from the sequence's first token, where they count.
  const at::Tensor& sums() const { return sums_; }
  // (H) f64: the sum of all gates before the current context.
  const at::Tensor& window_sums() const { return window_sums_; }

  // keys, values (T,G,D), on the device of the queries, and, within their context, their gate sums
  // (H,T) or undefined. Keys or values that are not finite are a failure() and no error: other
  // texts of the same pass go on.
  void add(const at::Tensor& keys,
           const at::Tensor& values,
           const at::Tensor& context_sums,
           const MemoryStore& store);
  // There will be so many tokens: room is made for them at once.
  void expect(int64_t tokens) { expected_ = tokens; }

 private:
  // A memory whose entries from `skipped` on count here from `begin` on.
  struct Part {
    const knn::Memory* memory = nullptr;
    int64_t skipped = 0;
    int64_t begin = 0, size = 0;

    int64_t end() const { return begin + size; }
    int64_t first_id() const { return memory->first_id(0) + skipped; }
  };

  int64_t own_size() const { return own_ ? own_->size(0) : 0; }
  int64_t earlier_size() const;
  std::vector<Part> parts() const;  // that hold entries
  static std::vector<Piece> pieces_of(const Part& part);
  knn::Memory begin_own(const at::Tensor& keys, const MemoryStore& store) const;
  void append(const at::Tensor& keys, const at::Tensor& values, const MemoryStore& store);

  std::shared_ptr<const knn::Memory> earlier_;
  int64_t earlier_capacity_ = 0;
  std::optional<knn::Memory> own_;
  bool coded_ = false;
  at::Tensor sums_, window_sums_;
  int64_t expected_ = 0;
  std::string failure_;
};

}  // namespace reynard::models
