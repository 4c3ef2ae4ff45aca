#pragma once
// The key-value memory of one attention layer: entries of every row of a batch (one document each,
// or one row that all queries share), searched exactly, bounded by a ring buffer if wanted, saved
// to a file and searched from it by mapping. Stored keys carry no gradient.
// Shapes: B rows, T tokens, G key/value heads, H query heads (G divides H), D head dimension.

#include "reynard/knn/search.h"
#include "reynard/tensor/error.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace reynard::checkpoint {
class ReadOnlyFile;
}

namespace reynard::knn {

// Which layer of which model the entries belong to: a file is only opened for the same.
struct MemoryLayer {
  std::string model;  // any text that names the weights; at most 512 bytes of UTF-8
  int64_t layer = 0;
  int64_t num_heads = 1;                 // G
  int64_t head_dim = 64;                 // D
  at::ScalarType dtype = at::kBFloat16;  // of keys and values: bf16 or f32
};

// Where the entries of a memory lie that is searched on a GPU. Host memory is pinned, but for a
// mapped file's.
enum class MemoryPlace {
  kDevice,      // keys and values on the device
  kHostValues,  // keys on it, values in host memory: of these only what was found crosses the bus
  kHost,        // both in host memory: each search copies the keys to the device, block by block
};

// Of a row: far above any real number, far below an overflow.
inline constexpr int64_t kMaxEntries = int64_t{1} << 56;

struct MemoryOptions {
  MemoryLayer of;
  int64_t num_rows = 1;   // B; with 1, queries of any number of rows share it (multi-document)
  int64_t capacity = 0;   // entries per row, at most kMaxEntries; 0: as many as fit
  bool evict = true;      // at capacity: the oldest entries leave; false: add() is an error
  std::string text = {};  // names what the entries were read from; at most 64 bytes of UTF-8
  at::Device device = at::kCPU;  // that searches: queries, and all that is read, lie there
  MemoryPlace place = MemoryPlace::kDevice;  // on a CPU all places are the same

  at::Device keys_device() const { return place == MemoryPlace::kHost ? at::kCPU : device; }
  at::Device values_device() const { return place == MemoryPlace::kDevice ? device : at::kCPU; }
};

struct Entries {
  at::Tensor keys, values;
};

class MemoryFileWriter;

// Entries that hold NaN or an infinity: no search could rank them.
struct NotFinite : Error {
  using Error::Error;
};

// Ids count the entries of a row from 0 and are never used again, not after a reset either: row b
// holds those in [first_id(b), next_id(b)). Every function that throws leaves the memory as it was.
// Copies share entries: a copy costs nothing until it writes where another one may read. Copies are
// not for several threads.
class Memory {
 public:
  // Throws reynard::Error for sizes out of range.
  explicit Memory(MemoryOptions options);
  Memory(const Memory&);
  Memory& operator=(const Memory&);
  Memory(Memory&&) noexcept;
  Memory& operator=(Memory&&) noexcept;
  ~Memory();

  const MemoryOptions& options() const { return options_; }

  // Appends keys and values (B,T,G,D), copied without gradient. valid (B,T) bool: only these
  // tokens are entries (padding, documents of unequal length); undefined: all. Throws NotFinite for
  // such entries, reynard::Error for other shapes or dtypes, a row that is full without eviction,
  // and a mapped memory.
  void add(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& valid = {});

  // Makes room for so many more entries of each row: add() then copies none of the earlier ones.
  void reserve(int64_t entries);

  // A new document begins in this row: its entries are gone, the other rows keep theirs.
  void reset_row(int64_t row);

  // From now on keeps int8 codes beside the keys (key_codes.h), half the bytes of bf16 keys: a
  // search for few queries then reads half of these and gives the same results. In a mapped memory
  // they are in main memory. Throws reynard::Error where a mapped key is not finite, and where a
  // GPU searches.
  void code_keys();

  int64_t num_rows() const { return options_.num_rows; }
  int64_t first_id(int64_t row) const;
  int64_t next_id(int64_t row) const;
  int64_t size(int64_t row) const { return next_id(row) - first_id(row); }

  // The k best keys of queries (B,Tq,H,D), as knn::search(); k at most the size of the largest row.
  SearchResult search(const at::Tensor& queries, int64_t k) const;
  // What search reads; valid until the memory changes.
  std::vector<KeyRing> key_rings() const;

  // Keys and values (B,Tq,H,k,D) of the ids (B,Tq,H,k) i64 that search() gave, in the memory's
  // dtype; zeros where the id is -1. Throws reynard::Error for an id that is not in its row, but
  // where entries lie on a GPU, which reads them unasked.
  Entries gather(const at::Tensor& ids) const;
  // Entries [first, first + size) of a row (size,G,D), counted from its oldest: what attention with
  // k = all reads. May share storage with the memory: valid until it changes.
  Entries entries(int64_t row, int64_t first, int64_t size) const;
  Entries entries(int64_t row) const { return entries(row, 0, size(row)); }  // all

  // Writes a file (docs/formats.md) that appears whole or not at all and ends with its digest.
  void save(const std::filesystem::path& path) const;
  // The same, to be named by the writer's commit().
  std::unique_ptr<MemoryFileWriter> write(const std::filesystem::path& path) const;
  // Reads the file into memory. num_rows: that it must have; 0: any number. Throws reynard::Error
  // when it is damaged, not of this layer or of other rows.
  static Memory load(const std::filesystem::path& path,
                     const MemoryLayer& of,
                     at::Device device = at::kCPU,
                     MemoryPlace place = MemoryPlace::kDevice,
                     int64_t num_rows = 0);
  // Leaves keys and values in the file, mapped: they may be larger than main memory. A device that
  // is a GPU searches them as those in host memory. Read once for its digest, then read-only; the
  // file must not be changed while it is in use.
  static Memory map(const std::filesystem::path& path,
                    const MemoryLayer& of,
                    at::Device device = at::kCPU,
                    int64_t num_rows = 0);

 private:
  struct Slots {
    at::Tensor keys, values;  // (G,S,D)
    KeyCodes codes;
    int64_t base = 0;     // id of slot 0
    int64_t written = 0;  // the id after the newest that any copy has written

    int64_t size() const { return keys.size(1); }
  };
  struct Row {
    std::shared_ptr<Slots> slots;
    int64_t first = 0, next = 0;

    int64_t size() const { return next - first; }
  };

  void check_row(int64_t row) const;
  void check_writable() const;
  void check_tokens(const at::Tensor& keys,
                    const at::Tensor& values,
                    const at::Tensor& valid) const;
  void check_room(int64_t row, int64_t added) const;
  std::shared_ptr<Slots> new_slots(int64_t size, int64_t base) const;
  std::shared_ptr<Slots> copied(const Row& row, int64_t size) const;
  at::Tensor gather(at::Tensor Slots::*member, const at::Tensor& ids) const;
  at::Tensor gather_by_index(at::Tensor Slots::*member, const at::Tensor& ids) const;
  static bool may_write(const Row& row, int64_t added);
  void reserve(Row& row, int64_t added, int64_t least_growth) const;
  void append(Row& row, const at::Tensor& keys, const at::Tensor& values) const;

  MemoryOptions options_;
  bool coded_ = false;
  std::vector<Row> rows_;
  std::shared_ptr<const checkpoint::ReadOnlyFile> mapped_;  // set: entries lie in this file
};

}  // namespace reynard::knn
