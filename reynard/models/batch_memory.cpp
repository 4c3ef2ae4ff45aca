#include "reynard/models/batch_memory.h"

#include "reynard/tensor/error.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

namespace reynard::models {

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

std::vector<checkpoint::NamedTensor> BatchMemory::state() const {
  std::vector<checkpoint::NamedTensor> tensors;
  for (const auto& [layer, rows] : layers_) {
    for (int64_t b = 0; b < rows_; ++b) {
      if (rows[b].size() == 0) continue;
      const std::string name = fmt::format("memory.{}.{}.", layer, b);
      tensors.push_back({name + "k", rows[b].k});
      tensors.push_back({name + "v", rows[b].v});
      if (rows[b].sums.defined()) tensors.push_back({name + "s", rows[b].sums});
    }
  }
  return tensors;
}

void BatchMemory::restore(std::span<const checkpoint::NamedTensor> saved, at::Device device) {
  layers_.clear();
  for (const checkpoint::NamedTensor& tensor : saved) {
    long layer = 0, row = 0;
    char kind = 0;
    const int read = std::sscanf(tensor.name.c_str(), "memory.%ld.%ld.%c", &layer, &row, &kind);
    const bool sums = kind == 's';
    if (read != 3 || row < 0 || row >= rows_ || tensor.tensor.dim() != (sums ? 2 : 3) ||
        (kind != 'k' && kind != 'v' && !sums)) {
      throw Error(fmt::format("checkpoint: \"{}\" is not a memory of this run", tensor.name));
    }
    Entries& memory = layers_.try_emplace(layer, rows_).first->second[row];
    (sums ? memory.sums : kind == 'k' ? memory.k : memory.v) = tensor.tensor.to(device);
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
