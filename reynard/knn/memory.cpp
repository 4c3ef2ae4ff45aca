#include "reynard/knn/memory.h"

#include "reynard/knn/memory_file.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nonzero.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace reynard::knn {

namespace {

constexpr int64_t kFewestSlots = 256;

struct Piece {
  int64_t slot, size;
};

// The slots of `size` entries from id on: one piece, or two around the end of the ring.
std::vector<Piece> pieces(int64_t id, int64_t size, int64_t base, int64_t slots) {
  std::vector<Piece> found;
  if (size == 0) return found;
  const int64_t slot = (id - base) % slots;
  const int64_t head = std::min(size, slots - slot);
  found.push_back({slot, head});
  if (head < size) found.push_back({0, size - head});
  return found;
}

// (G,n,D) of entries in ids' order; a view where they are in one piece.
at::Tensor in_order(const at::Tensor& slots, const std::vector<Piece>& order) {
  if (order.empty()) return slots.narrow(1, 0, 0);
  const at::Tensor head = slots.narrow(1, order[0].slot, order[0].size);
  if (order.size() == 1) return head;
  return at::cat({head, slots.narrow(1, order[1].slot, order[1].size)}, 1);
}

void check_finite(std::string_view arg, const at::Tensor& t) {
  if (at::isfinite(t).all().item<bool>()) return;
  throw Error(fmt::format("memory: {} hold NaN or an infinity; expected finite numbers", arg));
}

}  // namespace

Memory::Memory(MemoryOptions options) : options_(std::move(options)) {
  check_memory_options("memory", options_);
  rows_.resize(static_cast<size_t>(options_.num_rows));
  for (Row& row : rows_) row.keys = row.values = new_slots(0);
}

Memory::Memory(Memory&&) noexcept = default;
Memory& Memory::operator=(Memory&&) noexcept = default;
Memory::~Memory() = default;

void Memory::check_row(int64_t row) const {
  tensor::check_value(row >= 0 && row < options_.num_rows,
                      "memory",
                      "row",
                      row,
                      fmt::format("0 ... {}", options_.num_rows - 1));
}

void Memory::check_writable() const {
  if (!mapped_) return;
  throw Error(fmt::format("memory: its entries are mapped from {} and read-only; load it instead",
                          mapped_->path().string()));
}

void Memory::check_tokens(const at::Tensor& keys,
                          const at::Tensor& values,
                          const at::Tensor& valid) const {
  const tensor::Dim rows{"B", options_.num_rows}, heads{"G", options_.of.num_heads};
  const tensor::Dim head_dim{"D", options_.of.head_dim};
  tensor::check_shape("memory", "keys", keys, {rows, {"T"}, heads, head_dim});
  tensor::check_shape("memory", "values", values, {rows, {"T", keys.size(1)}, heads, head_dim});
  tensor::check_dtype("memory", "keys", keys, {options_.of.dtype});
  tensor::check_dtype("memory", "values", values, {options_.of.dtype});
  if (valid.defined()) {
    tensor::check_shape("memory", "valid", valid, {rows, {"T", keys.size(1)}});
    tensor::check_dtype("memory", "valid", valid, {at::kBool});
  }
}

void Memory::check_room(int64_t row, int64_t added) const {
  const Row& held = rows_[static_cast<size_t>(row)];
  if (options_.capacity == 0 || options_.evict || held.size() + added <= options_.capacity) return;
  throw Error(
      fmt::format("memory: row {} holds {} of at most {} entries and {} more do not fit; enlarge "
                  "the capacity, allow eviction or clear it",
                  row,
                  held.size(),
                  options_.capacity,
                  added));
}

at::Tensor Memory::new_slots(int64_t slots) const {
  return at::empty({options_.of.num_heads, slots, options_.of.head_dim}, options_.of.dtype);
}

// Makes room for `added` more entries as far as the capacity allows; slots double, so that adding
// costs constant time per entry.
void Memory::reserve(Row& row, int64_t added) const {
  const int64_t most = options_.capacity;
  int64_t needed = row.size() + added;
  if (most > 0) needed = std::min(needed, most);
  if (needed <= row.slots()) return;
  int64_t slots = std::max({needed, 2 * row.slots(), kFewestSlots});
  if (most > 0) slots = std::min(slots, most);
  const std::vector<Piece> order = pieces(row.first, row.size(), row.base, row.slots());
  const at::Tensor keys = new_slots(slots), values = new_slots(slots);
  int64_t begin = 0;
  for (const Piece& piece : order) {
    keys.narrow(1, begin, piece.size).copy_(row.keys.narrow(1, piece.slot, piece.size));
    values.narrow(1, begin, piece.size).copy_(row.values.narrow(1, piece.slot, piece.size));
    begin += piece.size;
  }
  if (coded_) {
    KeyCodes codes = new_codes(options_.of.num_heads, slots, options_.of.head_dim);
    encode_keys(keys.narrow(1, 0, row.size()), 0, codes);
    row.codes = std::move(codes);
  }
  row.keys = keys;
  row.values = values;
  row.base = row.first;
}

// keys, values (n,G,D). Slots are there (reserve).
void Memory::append(Row& row, const at::Tensor& keys, const at::Tensor& values) const {
  const int64_t added = keys.size(0);
  const int64_t kept = std::min(added, row.slots());
  int64_t from = added - kept;  // entries that would be evicted by this very call
  for (const Piece& piece : pieces(row.next + from, kept, row.base, row.slots())) {
    const auto write = [&](const at::Tensor& slots, const at::Tensor& source) {
      slots.narrow(1, piece.slot, piece.size)
          .copy_(source.narrow(0, from, piece.size).transpose(0, 1));
    };
    write(row.keys, keys);
    write(row.values, values);
    if (coded_) encode_keys(row.keys.narrow(1, piece.slot, piece.size), piece.slot, row.codes);
    from += piece.size;
  }
  row.next += added;
  if (options_.capacity > 0) row.first = std::max(row.first, row.next - options_.capacity);
}

void Memory::add(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& valid) {
  check_writable();
  check_tokens(keys, values, valid);
  std::vector<Entries> added;
  for (int64_t row = 0; row < options_.num_rows; ++row) {
    Entries entries{keys[row].detach().to(at::kCPU), values[row].detach().to(at::kCPU)};
    if (valid.defined()) {
      const at::Tensor chosen = at::nonzero(valid[row].to(at::kCPU)).squeeze(1);
      entries = {entries.keys.index_select(0, chosen), entries.values.index_select(0, chosen)};
    }
    check_finite("keys", entries.keys);
    check_finite("values", entries.values);
    check_room(row, entries.keys.size(0));
    added.push_back(std::move(entries));
  }
  // All rows get their slots before any is written: running out of memory changes nothing.
  for (size_t row = 0; row < rows_.size(); ++row) reserve(rows_[row], added[row].keys.size(0));
  for (size_t row = 0; row < rows_.size(); ++row) {
    append(rows_[row], added[row].keys, added[row].values);
  }
}

void Memory::code_keys() {
  std::vector<KeyCodes> all;
  for (const Row& row : rows_) {
    KeyCodes codes = new_codes(options_.of.num_heads, row.slots(), options_.of.head_dim);
    for (const Piece& piece : pieces(row.first, row.size(), row.base, row.slots())) {
      encode_keys(row.keys.narrow(1, piece.slot, piece.size), piece.slot, codes);
    }
    all.push_back(std::move(codes));
  }
  for (size_t row = 0; row < rows_.size(); ++row) rows_[row].codes = std::move(all[row]);
  coded_ = true;
}

void Memory::reset_row(int64_t row) {
  check_writable();
  check_row(row);
  Row& old = rows_[static_cast<size_t>(row)];
  old.base = old.first = old.next;
}

void Memory::clear() {
  check_writable();
  for (int64_t row = 0; row < options_.num_rows; ++row) reset_row(row);
}

int64_t Memory::first_id(int64_t row) const {
  check_row(row);
  return rows_[static_cast<size_t>(row)].first;
}

int64_t Memory::next_id(int64_t row) const {
  check_row(row);
  return rows_[static_cast<size_t>(row)].next;
}

int64_t Memory::max_size() const {
  int64_t most = 0;
  for (const Row& row : rows_) most = std::max(most, row.size());
  return most;
}

std::vector<KeyRing> Memory::key_rings() const {
  std::vector<KeyRing> rings;
  rings.reserve(rows_.size());
  for (const Row& row : rows_) {
    rings.push_back({row.keys, row.base, row.first, row.next, row.codes});
  }
  return rings;
}

SearchResult Memory::search(const at::Tensor& queries, int64_t k) const {
  return knn::search(queries, key_rings(), k);
}

Entries Memory::gather(const at::Tensor& ids) const {
  tensor::check_shape("memory", "ids", ids, {{"B"}, {"Tq"}, {"H"}, {"k"}});
  tensor::check_dtype("memory", "ids", ids, {at::kLong});
  const int64_t batch = ids.size(0), num_heads = ids.size(2), k = ids.size(3);
  tensor::check_value(options_.num_rows == 1 || options_.num_rows == batch,
                      "memory",
                      "rows of ids",
                      batch,
                      fmt::format("B = {}", options_.num_rows));
  const MemoryLayer& of = options_.of;
  tensor::check_value(num_heads % of.num_heads == 0,
                      "memory",
                      "heads of ids",
                      num_heads,
                      fmt::format("a multiple of G = {}", of.num_heads));
  const at::Tensor source = ids.cpu().contiguous();
  const auto* id = source.const_data_ptr<int64_t>();
  const std::vector<int64_t> shape = {batch, ids.size(1), num_heads, k, of.head_dim};
  const Entries out{at::empty(shape, of.dtype), at::empty(shape, of.dtype)};
  auto* out_keys = static_cast<char*>(out.keys.mutable_data_ptr());
  auto* out_values = static_cast<char*>(out.values.mutable_data_ptr());
  const auto bytes = static_cast<size_t>(of.head_dim) * out.keys.element_size();
  tensor::run_tasks(batch * ids.size(1), [&](int64_t task, int64_t /*worker*/) {
    const int64_t b = options_.num_rows == 1 ? 0 : task / ids.size(1);
    const Row& row = rows_[static_cast<size_t>(b)];
    for (int64_t i = task * num_heads * k; i < (task + 1) * num_heads * k; ++i) {
      char* key = out_keys + i * static_cast<int64_t>(bytes);
      char* value = out_values + i * static_cast<int64_t>(bytes);
      if (id[i] == -1) {
        std::memset(key, 0, bytes);
        std::memset(value, 0, bytes);
        continue;
      }
      tensor::check_value(id[i] >= row.first && id[i] < row.next,
                          "memory",
                          fmt::format("id for row {}", b),
                          id[i],
                          fmt::format("-1 or an id in [{}, {})", row.first, row.next));
      const int64_t head = i / k % num_heads * of.num_heads / num_heads;
      const int64_t slot = (id[i] - row.base) % row.slots();
      const auto at = static_cast<size_t>(head * row.slots() + slot) * bytes;
      std::memcpy(key, static_cast<const char*>(row.keys.const_data_ptr()) + at, bytes);
      std::memcpy(value, static_cast<const char*>(row.values.const_data_ptr()) + at, bytes);
    }
  });
  return out;
}

Entries Memory::entries(int64_t row) const {
  check_row(row);
  const Row& held = rows_[static_cast<size_t>(row)];
  const std::vector<Piece> order = pieces(held.first, held.size(), held.base, held.slots());
  return {in_order(held.keys, order).transpose(0, 1), in_order(held.values, order).transpose(0, 1)};
}

void Memory::save(const std::filesystem::path& path) const {
  MemoryFileHeader header{options_, {}};
  for (const Row& row : rows_) header.rows.push_back({row.first, row.next});
  MemoryFileWriter file(path, header);
  for (const bool values : {false, true}) {
    for (const Row& row : rows_) {
      const at::Tensor& slots = values ? row.values : row.keys;
      for (int64_t head = 0; head < slots.size(0); ++head) {
        for (const Piece& piece : pieces(row.first, row.size(), row.base, row.slots())) {
          const at::Tensor block = slots[head].narrow(0, piece.slot, piece.size);
          file.write(block.const_data_ptr(), block.nbytes());
        }
      }
      file.end_section();
    }
  }
  file.commit();
}

Memory Memory::load(const std::filesystem::path& path, const MemoryLayer& of) {
  const MemoryFile file(path, of);
  Memory memory(file.header().options);
  for (int64_t row = 0; row < memory.num_rows(); ++row) {
    Row& loaded = memory.rows_[static_cast<size_t>(row)];
    const MemoryFileRow& ids = file.header().rows[static_cast<size_t>(row)];
    loaded.base = loaded.first = ids.first;
    loaded.next = ids.next;
    loaded.keys = memory.new_slots(ids.next - ids.first);
    loaded.values = memory.new_slots(ids.next - ids.first);
    file.read(file.keys_at(row), loaded.keys.mutable_data_ptr(), loaded.keys.nbytes());
    file.read(file.values_at(row), loaded.values.mutable_data_ptr(), loaded.values.nbytes());
    check_finite(fmt::format("keys of {}", path.string()), loaded.keys);
    check_finite(fmt::format("values of {}", path.string()), loaded.values);
  }
  return memory;
}

Memory Memory::map(const std::filesystem::path& path, const MemoryLayer& of) {
  const MemoryFile file(path, of);
  Memory memory(file.header().options);
  memory.mapped_ = std::make_shared<const MappedFile>(file);
  for (int64_t row = 0; row < memory.num_rows(); ++row) {
    Row& mapped = memory.rows_[static_cast<size_t>(row)];
    const MemoryFileRow& ids = file.header().rows[static_cast<size_t>(row)];
    mapped.base = mapped.first = ids.first;
    mapped.next = ids.next;
    const std::vector<int64_t> shape = {of.num_heads, ids.next - ids.first, of.head_dim};
    mapped.keys = memory.mapped_->tensor(file.keys_at(row), shape, of.dtype);
    mapped.values = memory.mapped_->tensor(file.values_at(row), shape, of.dtype);
  }
  return memory;
}

}  // namespace reynard::knn
