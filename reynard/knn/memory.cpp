#include "reynard/knn/memory.h"

#include "reynard/knn/memory_file.h"
#include "reynard/knn/streamed_search.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/huge_pages.h"
#include "reynard/tensor/parallel.h"
#include "reynard/tensor/pinned.h"

#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
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

// (n,G,D) on a device of entries in ids' order; a view where they lie there in one piece.
at::Tensor in_order(const at::Tensor& slots, const std::vector<Piece>& order, at::Device device) {
  const auto piece = [&](const Piece& at) {
    return on_device(slots.narrow(1, at.slot, at.size), device).transpose(0, 1);
  };
  if (order.empty()) return piece({0, 0});
  if (order.size() == 1) return piece(order[0]);
  return at::cat({piece(order[0]), piece(order[1])});
}

void check_finite(std::string_view arg, const at::Tensor& t) {
  if (at::isfinite(t).all().item<bool>()) return;
  throw NotFinite(fmt::format("memory: {} hold NaN or an infinity; expected finite numbers", arg));
}

}  // namespace

Memory::Memory(MemoryOptions options) : options_(std::move(options)) {
  check_memory_options("memory", options_);
  rows_.resize(static_cast<size_t>(options_.num_rows));
  for (Row& row : rows_) row.slots = new_slots(0, 0);
}

Memory::Memory(const Memory&) = default;
Memory& Memory::operator=(const Memory&) = default;
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

std::shared_ptr<Memory::Slots> Memory::new_slots(int64_t size, int64_t base) const {
  const std::vector<int64_t> shape = {options_.of.num_heads, size, options_.of.head_dim};
  const auto on = [&](at::Device device) {
    const bool crosses_bus = device.is_cpu() && !options_.device.is_cpu();
    if (crosses_bus) return tensor::pinned_empty(shape, options_.of.dtype);
    const at::Tensor entries =
        at::empty(shape, at::TensorOptions().dtype(options_.of.dtype).device(device));
    if (device.is_cpu()) {
      tensor::advise_huge_pages(entries.data_ptr(), static_cast<int64_t>(entries.nbytes()));
    }
    return entries;
  };
  auto slots = std::make_shared<Slots>();
  slots->keys = on(options_.keys_device());
  slots->values = on(options_.values_device());
  slots->base = slots->written = base;
  return slots;
}

// Slots of its own, or shared ones behind all that a copy may read.
bool Memory::may_write(const Row& row, int64_t added) {
  const Slots& slots = *row.slots;
  return row.slots.use_count() == 1 ||
         (slots.written == row.next && row.next + added - slots.base <= slots.size());
}

// Makes room for `added` more entries as far as the capacity allows. Slots grow to at least
// least_growth times their number: doubling makes adding cost constant time per entry.
void Memory::reserve(Row& row, int64_t added, int64_t least_growth) const {
  const int64_t most = options_.capacity;
  const Slots& held = *row.slots;
  int64_t needed = row.size() + added;
  if (most > 0) needed = std::min(needed, most);
  if (needed <= held.size() && may_write(row, added)) return;
  int64_t size = held.size();
  if (needed > size) size = std::max({needed, least_growth * size, kFewestSlots});
  if (most > 0) size = std::min(size, most);
  row.slots = copied(row, size);
}

// The row's entries in slots of their own.
std::shared_ptr<Memory::Slots> Memory::copied(const Row& row, int64_t size) const {
  const Slots& held = *row.slots;
  std::shared_ptr<Slots> slots = new_slots(size, row.first);
  int64_t begin = 0;
  for (const Piece& piece : pieces(row.first, row.size(), held.base, held.size())) {
    slots->keys.narrow(1, begin, piece.size).copy_(held.keys.narrow(1, piece.slot, piece.size));
    slots->values.narrow(1, begin, piece.size).copy_(held.values.narrow(1, piece.slot, piece.size));
    begin += piece.size;
  }
  if (coded_) {
    slots->codes = new_codes(options_.of.num_heads, size, options_.of.head_dim);
    encode_keys(slots->keys.narrow(1, 0, row.size()), 0, slots->codes);
  }
  slots->written = row.next;
  return slots;
}

// keys, values (n,G,D). Slots are there (reserve).
void Memory::append(Row& row, const at::Tensor& keys, const at::Tensor& values) const {
  Slots& slots = *row.slots;
  const int64_t added = keys.size(0);
  const int64_t kept = std::min(added, slots.size());
  int64_t from = added - kept;  // entries that would be evicted by this very call
  for (const Piece& piece : pieces(row.next + from, kept, slots.base, slots.size())) {
    const auto write = [&](const at::Tensor& to, const at::Tensor& source) {
      copy_by_heads(to.narrow(1, piece.slot, piece.size),
                    source.narrow(0, from, piece.size).transpose(0, 1));
    };
    write(slots.keys, keys);
    write(slots.values, values);
    if (coded_) encode_keys(slots.keys.narrow(1, piece.slot, piece.size), piece.slot, slots.codes);
    from += piece.size;
  }
  row.next = slots.written = row.next + added;
  if (options_.capacity > 0) row.first = std::max(row.first, row.next - options_.capacity);
}

void Memory::reserve(int64_t entries) {
  check_writable();
  tensor::check_value(entries >= 0, "memory", "entries to reserve", entries, ">= 0");
  for (Row& row : rows_) reserve(row, entries, /*least_growth=*/1);
}

void Memory::add(const at::Tensor& keys, const at::Tensor& values, const at::Tensor& valid) {
  check_writable();
  check_tokens(keys, values, valid);
  std::vector<Entries> added;
  for (int64_t row = 0; row < options_.num_rows; ++row) {
    Entries entries{keys[row].detach(), values[row].detach()};
    if (valid.defined()) {
      const at::Tensor chosen = at::nonzero(valid[row]).squeeze(1);
      entries = {entries.keys.index_select(0, chosen.to(keys.device())),
                 entries.values.index_select(0, chosen.to(values.device()))};
    }
    check_finite("keys", entries.keys);
    check_finite("values", entries.values);
    check_room(row, entries.keys.size(0));
    added.push_back(std::move(entries));
  }
  // All rows get their slots before any is written: running out of memory changes nothing.
  for (size_t row = 0; row < rows_.size(); ++row) {
    reserve(rows_[row], added[row].keys.size(0), /*least_growth=*/2);
  }
  for (size_t row = 0; row < rows_.size(); ++row) {
    append(rows_[row], added[row].keys, added[row].values);
  }
}

void Memory::code_keys() {
  tensor::check_value(
      options_.device.is_cpu(), "memory", "device of coded keys", options_.device.str(), "cpu");
  std::vector<KeyCodes> all;
  for (Row& row : rows_) {
    // Copies stay without codes.
    if (row.slots.use_count() > 1 && !mapped_) row.slots = copied(row, row.slots->size());
    const Slots& slots = *row.slots;
    KeyCodes codes = new_codes(options_.of.num_heads, slots.size(), options_.of.head_dim);
    for (const Piece& piece : pieces(row.first, row.size(), slots.base, slots.size())) {
      encode_keys(slots.keys.narrow(1, piece.slot, piece.size), piece.slot, codes);
    }
    all.push_back(std::move(codes));
  }
  for (size_t row = 0; row < rows_.size(); ++row) rows_[row].slots->codes = std::move(all[row]);
  coded_ = true;
}

void Memory::reset_row(int64_t row) {
  check_writable();
  check_row(row);
  Row& old = rows_[static_cast<size_t>(row)];
  if (old.slots.use_count() > 1) old.slots = new_slots(0, old.next);
  old.first = old.slots->base = old.slots->written = old.next;
}

int64_t Memory::first_id(int64_t row) const {
  check_row(row);
  return rows_[static_cast<size_t>(row)].first;
}

int64_t Memory::next_id(int64_t row) const {
  check_row(row);
  return rows_[static_cast<size_t>(row)].next;
}

std::vector<KeyRing> Memory::key_rings() const {
  std::vector<KeyRing> rings;
  rings.reserve(rows_.size());
  for (const Row& row : rows_) {
    const Slots& slots = *row.slots;
    rings.push_back({slots.keys, slots.base, row.first, row.next, slots.codes});
  }
  return rings;
}

SearchResult Memory::search(const at::Tensor& queries, int64_t k) const {
  return knn::search(queries, key_rings(), k);
}

Entries Memory::gather(const at::Tensor& ids) const {
  tensor::check_shape("memory", "ids", ids, {{"B"}, {"Tq"}, {"H"}, {"k"}});
  tensor::check_dtype("memory", "ids", ids, {at::kLong});
  const int64_t batch = ids.size(0), num_heads = ids.size(2);
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
  const auto gathered = [&](at::Tensor Slots::*member, at::Device device) {
    return device.is_cpu() ? gather(member, ids).to(options_.device) : gather_by_index(member, ids);
  };
  return {gathered(&Slots::keys, options_.keys_device()),
          gathered(&Slots::values, options_.values_device())};
}

// Of entries in host memory.
at::Tensor Memory::gather(at::Tensor Slots::*member, const at::Tensor& ids) const {
  const MemoryLayer& of = options_.of;
  const int64_t batch = ids.size(0), num_heads = ids.size(2), k = ids.size(3);
  const at::Tensor source = ids.cpu().contiguous();
  const auto* id = source.const_data_ptr<int64_t>();
  const at::Tensor found = at::empty({batch, ids.size(1), num_heads, k, of.head_dim}, of.dtype);
  auto* out = static_cast<char*>(found.mutable_data_ptr());
  const auto bytes = static_cast<size_t>(of.head_dim) * found.element_size();
  tensor::run_tasks(batch * ids.size(1), [&](int64_t task, int64_t /*worker*/) {
    const int64_t b = options_.num_rows == 1 ? 0 : task / ids.size(1);
    const Row& row = rows_[static_cast<size_t>(b)];
    const Slots& slots = *row.slots;
    const auto* entries = static_cast<const char*>((slots.*member).const_data_ptr());
    for (int64_t i = task * num_heads * k; i < (task + 1) * num_heads * k; ++i) {
      char* entry = out + i * static_cast<int64_t>(bytes);
      if (id[i] == -1) {
        std::memset(entry, 0, bytes);
        continue;
      }
      tensor::check_value(id[i] >= row.first && id[i] < row.next,
                          "memory",
                          fmt::format("id for row {}", b),
                          id[i],
                          fmt::format("-1 or an id in [{}, {})", row.first, row.next));
      const int64_t head = i / k % num_heads * of.num_heads / num_heads;
      const int64_t slot = (id[i] - slots.base) % slots.size();
      std::memcpy(entry, entries + static_cast<size_t>(head * slots.size() + slot) * bytes, bytes);
    }
  });
  return found;
}

// Of entries on a GPU, where reading an id would wait: ids are trusted to be search()'s.
at::Tensor Memory::gather_by_index(at::Tensor Slots::*member, const at::Tensor& ids) const {
  const int64_t batch = ids.size(0), num_heads = ids.size(2);
  if (batch == 0) {  // at::stack takes one or more
    return at::empty({0, ids.size(1), num_heads, ids.size(3), options_.of.head_dim},
                     at::TensorOptions(options_.device).dtype(options_.of.dtype));
  }
  const at::Tensor places = ids.to(options_.device);
  const at::Tensor heads =
      at::floor_divide(at::arange(num_heads, places.options()) * options_.of.num_heads, num_heads);
  std::vector<at::Tensor> rows;
  for (int64_t b = 0; b < batch; ++b) {
    const Slots& slots = *rows_[options_.num_rows == 1 ? 0 : static_cast<size_t>(b)].slots;
    const at::Tensor& entries = slots.*member;
    if (slots.size() == 0) {
      const std::array shape = {ids.size(1), num_heads, ids.size(3), entries.size(2)};
      rows.push_back(at::zeros(shape, entries.options()));
      continue;
    }
    const at::Tensor nothing = places[b].lt(0).unsqueeze(-1);
    const at::Tensor slot = (places[b] - slots.base).clamp_min(0).remainder(slots.size());
    // Not a product: what lies in a slot without an entry may be NaN.
    rows.push_back(entries.index({heads.view({1, -1, 1}), slot}).masked_fill(nothing, 0));
  }
  return at::stack(rows);
}

Entries Memory::entries(int64_t row, int64_t first, int64_t size) const {
  check_row(row);
  const Row& held = rows_[static_cast<size_t>(row)];
  tensor::check_value(first >= 0 && first <= held.size(),
                      "memory",
                      "first entry to read",
                      first,
                      fmt::format("0 ... {}, the entries that there are", held.size()));
  tensor::check_value(size >= 0 && size <= held.size() - first,
                      "memory",
                      "number of entries to read",
                      size,
                      fmt::format("0 ... {}, those from entry {} on", held.size() - first, first));
  const Slots& slots = *held.slots;
  const std::vector<Piece> order = pieces(held.first + first, size, slots.base, slots.size());
  return {in_order(slots.keys, order, options_.device),
          in_order(slots.values, order, options_.device)};
}

void Memory::save(const std::filesystem::path& path) const {
  write(path)->commit();
}

std::unique_ptr<MemoryFileWriter> Memory::write(const std::filesystem::path& path) const {
  MemoryFileHeader header{options_, {}};
  for (const Row& row : rows_) header.rows.push_back({row.first, row.next});
  auto file = std::make_unique<MemoryFileWriter>(path, header);
  for (const bool values : {false, true}) {
    for (const Row& row : rows_) {
      const Slots& slots = *row.slots;
      const at::Tensor& held = values ? slots.values : slots.keys;
      for (int64_t head = 0; head < held.size(0); ++head) {
        for (const Piece& piece : pieces(row.first, row.size(), slots.base, slots.size())) {
          const at::Tensor block = held[head].narrow(0, piece.slot, piece.size).cpu();
          file->write(block.const_data_ptr(), block.nbytes());
        }
      }
      file->end_section();
    }
  }
  file->finish();
  return file;
}

Memory Memory::load(const std::filesystem::path& path,
                    const MemoryLayer& of,
                    at::Device device,
                    MemoryPlace place,
                    int64_t num_rows) {
  MemoryFile file(path, of, num_rows);
  Memory memory(file.header().options);
  memory.options_.device = device;
  memory.options_.place = place;
  for (int64_t row = 0; row < memory.num_rows(); ++row) {
    Row& loaded = memory.rows_[static_cast<size_t>(row)];
    const MemoryFileRow& ids = file.header().rows[static_cast<size_t>(row)];
    loaded.first = ids.first;
    loaded.next = ids.next;
    loaded.slots = memory.new_slots(ids.next - ids.first, ids.first);
    loaded.slots->written = ids.next;
  }
  const auto read = [&](int64_t offset, const at::Tensor& entries) {
    const at::Tensor here = entries.is_cpu() ? entries : at::empty(entries.sizes(), of.dtype);
    file.read(offset, here.mutable_data_ptr(), here.nbytes());
    if (!entries.is_cpu()) entries.copy_(here);
  };
  for (int64_t row = 0; row < memory.num_rows(); ++row) {
    read(file.keys_at(row), memory.rows_[static_cast<size_t>(row)].slots->keys);
  }
  for (int64_t row = 0; row < memory.num_rows(); ++row) {
    read(file.values_at(row), memory.rows_[static_cast<size_t>(row)].slots->values);
  }
  file.check_digest();
  for (const Row& row : memory.rows_) {
    check_finite("keys of " + path.string(), row.slots->keys);
    check_finite("values of " + path.string(), row.slots->values);
  }
  return memory;
}

Memory Memory::map(const std::filesystem::path& path,
                   const MemoryLayer& of,
                   at::Device device,
                   int64_t num_rows) {
  MemoryFile file(path, of, num_rows);
  file.check_digest();
  Memory memory(file.header().options);
  memory.options_.device = device;
  memory.options_.place = MemoryPlace::kHost;
  memory.mapped_ = file.on_disk();
  for (int64_t row = 0; row < memory.num_rows(); ++row) {
    Row& mapped = memory.rows_[static_cast<size_t>(row)];
    const MemoryFileRow& ids = file.header().rows[static_cast<size_t>(row)];
    mapped.first = ids.first;
    mapped.next = ids.next;
    const std::vector<int64_t> shape = {of.num_heads, ids.next - ids.first, of.head_dim};
    mapped.slots->base = ids.first;
    mapped.slots->written = ids.next;
    const auto tensor_at = [&](int64_t offset) {
      return at::from_blob(
          memory.mapped_->mapped() + offset,
          shape,
          [kept = memory.mapped_](void*) {},
          at::TensorOptions().dtype(of.dtype));
    };
    mapped.slots->keys = tensor_at(file.keys_at(row));
    mapped.slots->values = tensor_at(file.values_at(row));
  }
  return memory;
}

}  // namespace reynard::knn
