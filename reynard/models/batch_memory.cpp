#include "reynard/models/batch_memory.h"

#include "reynard/tensor/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ranges>
#include <utility>

namespace reynard::models {

std::string MemoryName::text() const {
  return fmt::format("{}.memory.{}.{}.{}", micro_batch, layer, row, kind);
}

std::optional<MemoryName> MemoryName::parse(std::string_view text) {
  std::vector<std::string_view> parts;
  for (const auto part : std::views::split(text, '.')) parts.emplace_back(part.begin(), part.end());
  if (parts.size() != 5 || parts[4].size() != 1) return {};
  const auto number = [&](std::size_t part) {
    int64_t value = -1;
    std::from_chars(parts[part].data(), parts[part].data() + parts[part].size(), value);
    return value;
  };
  const MemoryName name{
      .micro_batch = number(0), .layer = number(2), .row = number(3), .kind = parts[4][0]};
  const bool is_one = std::min({name.micro_batch, name.layer, name.row}) >= 0 &&
                      std::string_view("kvs").find(name.kind) != std::string_view::npos;
  // No sign, zero before or letter behind a number.
  return is_one && name.text() == text ? std::optional(name) : std::nullopt;
}

BatchMemory::BatchMemory(int64_t rows, int64_t capacity, bool across_documents, int64_t overlap)
    : capacity_(capacity), across_documents_(across_documents), overlap_(overlap), rows_(rows) {}

int64_t BatchMemory::seen(int64_t row, const Entries& entries) const {
  return most_.empty() ? entries.size() : std::min(entries.size(), most_[row]);
}

int64_t BatchMemory::most_seen(const std::vector<Entries>& rows) const {
  int64_t M = 0;
  for (int64_t b = 0; b < rows_; ++b) M = std::max(M, seen(b, rows[b]));
  return M;
}

bool BatchMemory::Entries::is_whole(bool with_sums) const {
  if (!k.defined()) return !v.defined() && !sums.defined();
  if (!v.defined() || k.sizes() != v.sizes() || sums.defined() != with_sums) return false;
  return !with_sums || sums.size(0) == size();
}

void BatchMemory::Entries::add(const Entries& newer, int64_t capacity) {
  const auto newest = [&](const at::Tensor& old, const at::Tensor& added) {
    const at::Tensor all = old.defined() ? at::cat({old, added}) : added.contiguous();
    if (all.size(0) <= capacity) return all;
    // Contiguous: what is forgotten must not stay in memory.
    return all.narrow(0, all.size(0) - capacity, capacity).contiguous();
  };
  k = newest(k, newer.k);
  v = newest(v, newer.v);
  if (newer.sums.defined()) sums = newest(sums, newer.sums);
}

void BatchMemory::begin_step(const at::Tensor& starts, std::vector<int64_t> most) {
  staged_.clear();
  most_ = std::move(most);
  first_start_.assign(rows_, starts.size(1));
  last_start_.assign(rows_, -1);
  if (across_documents_) return;
  const at::Tensor flags = starts.contiguous();
  const auto* flag = flags.const_data_ptr<bool>();
  for (int64_t b = 0; b < rows_; ++b) {
    for (int64_t t = 0; t < starts.size(1); ++t) {
      if (!flag[b * starts.size(1) + t]) continue;
      first_start_[b] = std::min(first_start_[b], t);
      if (t < starts.size(1) - overlap_) last_start_[b] = t;
    }
  }
}

BatchMemory::View BatchMemory::view(int64_t layer) const {
  const auto found = layers_.find(layer);
  if (found == layers_.end()) return {};
  const int64_t M = most_seen(found->second);
  if (M == 0) return {};
  const Entries& any =
      *std::ranges::find_if(found->second, [](const Entries& row) { return row.size() > 0; });
  // Rows are as long as the longest: what is missing comes first and is never seen.
  const auto aligned = [&](at::Tensor Entries::*member) {
    std::vector<int64_t> sizes = (any.*member).sizes().vec();
    sizes[0] = M;
    sizes.insert(sizes.begin(), rows_);
    at::Tensor all = at::zeros(sizes, (any.*member).options());
    for (int64_t b = 0; b < rows_; ++b) {
      const Entries& row = found->second[b];
      const int64_t size = seen(b, row);
      if (size == 0) continue;
      all[b].narrow(0, M - size, size).copy_((row.*member).narrow(0, row.size() - size, size));
    }
    return all;
  };
  View view{.k = aligned(&Entries::k), .v = aligned(&Entries::v), .sums = {}};
  if (any.sums.defined()) view.sums = aligned(&Entries::sums).transpose(1, 2);
  return view;
}

at::Tensor BatchMemory::first_key(int64_t layer, int64_t begin, int64_t size) const {
  const std::vector<Entries>& rows = layers_.at(layer);
  const int64_t M = most_seen(rows);
  const at::Tensor first = at::empty({rows_, size}, at::kInt);
  auto* key = first.data_ptr<int32_t>();
  for (int64_t b = 0; b < rows_; ++b) {
    for (int64_t t = 0; t < size; ++t) {
      const bool sees = begin + t < first_start_[b];
      key[b * size + t] = static_cast<int32_t>(sees ? M - seen(b, rows[b]) : M);
    }
  }
  return first;
}

void BatchMemory::stage(int64_t layer,
                        const at::Tensor& k,
                        const at::Tensor& v,
                        const at::Tensor& sums) {
  staged_[layer] = {
      .k = k.detach(), .v = v.detach(), .sums = sums.defined() ? sums.detach() : sums};
}

void BatchMemory::commit() {
  for (const auto& [layer, added] : staged_) {
    std::vector<Entries>& rows = layers_.try_emplace(layer, rows_).first->second;
    for (int64_t b = 0; b < rows_; ++b) {
      if (last_start_[b] >= 0) rows[b] = {};
      const int64_t begin = std::max<int64_t>(last_start_[b], 0);
      const int64_t end = added.k.size(1) - overlap_;
      Entries newer{
          .k = added.k[b].slice(0, begin, end), .v = added.v[b].slice(0, begin, end), .sums = {}};
      if (added.sums.defined()) {
        // The next step begins behind the last of them.
        const at::Tensor through = added.sums[b].select(1, end - 1);
        newer.sums = added.sums[b].slice(1, begin, end).t() - through;
        if (rows[b].sums.defined()) rows[b].sums = rows[b].sums - through;
      }
      rows[b].add(newer, capacity_);
    }
  }
  staged_.clear();
}

void BatchMemory::clear() {
  staged_.clear();
  layers_.clear();
}

std::vector<BatchMemory::Saved> BatchMemory::state() const {
  std::vector<Saved> tensors;
  for (const auto& [layer, rows] : layers_) {
    for (int64_t b = 0; b < rows_; ++b) {
      if (rows[b].size() == 0) continue;
      MemoryName name{.layer = layer, .row = b};
      for (const auto& [kind, tensor] :
           {std::pair('k', rows[b].k), std::pair('v', rows[b].v), std::pair('s', rows[b].sums)}) {
        name.kind = kind;
        if (tensor.defined()) tensors.push_back({name, tensor});
      }
    }
  }
  return tensors;
}

void BatchMemory::restore(std::span<const Saved> saved, at::Device device) {
  layers_.clear();
  for (const auto& [name, tensor] : saved) {
    const bool sums = name.kind == 's';
    if (name.row < 0 || name.row >= rows_ || tensor.dim() != (sums ? 2 : 3)) {
      throw Error(fmt::format(
          "checkpoint: \"{}\" has {} dimensions; expected {}, and a row below the batch's {}",
          name.text(),
          tensor.dim(),
          sums ? 2 : 3,
          rows_));
    }
    Entries& memory = layers_.try_emplace(name.layer, rows_).first->second[name.row];
    (sums ? memory.sums : name.kind == 'k' ? memory.k : memory.v) = tensor.to(device);
  }
  for (const auto& [layer, rows] : layers_) {
    const bool with_sums =
        std::ranges::any_of(rows, [](const Entries& row) { return row.sums.defined(); });
    for (const Entries& row : rows) {
      if (row.is_whole(with_sums)) continue;
      throw Error(fmt::format(
          "checkpoint: keys, values and gate sums in the memory of layer {} do not belong together",
          layer));
    }
  }
}

}  // namespace reynard::models
