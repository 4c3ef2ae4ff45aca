#include "reynard/checkpoint/safetensors.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/read_only_file.h"
#include "reynard/checkpoint/safetensors_header.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

namespace reynard::checkpoint {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(std::make_shared<ReadOnlyFile>(path)) {
  const std::string name = path.string();
  const auto file_bytes = static_cast<uint64_t>(file_->size_bytes());
  if (file_bytes < 8) {
    throw Error(fmt::format("{}: has {}; a safetensors file begins with 8 bytes of header length",
                            name,
                            counted(file_bytes, "byte")));
  }
  uint64_t header_bytes = 0;
  file_->read(0, &header_bytes, 8);
  if (header_bytes > file_bytes - 8) {
    throw Error(
        fmt::format("{}: header length {} goes beyond the file's {} bytes; the file is cut "
                    "short or not safetensors",
                    name,
                    header_bytes,
                    file_bytes));
  }
  if (header_bytes > kMaxHeaderBytes) {
    throw Error(fmt::format(
        "{}: header length {} is beyond the format's {}", name, header_bytes, kMaxHeaderBytes));
  }
  std::string text(header_bytes, '\0');
  file_->read(8, text.data(), header_bytes);
  data_offset_ = 8 + header_bytes;
  Header header = parse_header(text, name, file_bytes - data_offset_);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) {
    throw Error(fmt::format("{}: has no tensor {}", path_.string(), json_quoted(name)));
  }
  const at::Tensor tensor = at::empty(info->shape, at::TensorOptions().dtype(info->dtype));
  const uint64_t bytes = info->end - info->begin;
  if (bytes == 0) return tensor;
  file_->read(data_offset_ + info->begin, tensor.mutable_data_ptr(), bytes);
  if (info->dtype == at::kBool) {
    const auto* values = static_cast<const unsigned char*>(tensor.const_data_ptr());
    if (std::any_of(values, values + bytes, [](unsigned char value) { return value > 1; })) {
      throw Error(fmt::format("{}: tensor {}: BOOL holds a byte that is neither 0 nor 1",
                              path_.string(),
                              json_quoted(name)));
    }
  }
  return tensor;
}

at::Tensor SafetensorsFile::map(std::span<const std::string> names) const {
  const TensorInfo* const first = names.empty() ? nullptr : find(names[0]);
  if (first == nullptr || first->shape.empty() || first->begin == first->end) return {};
  if ((data_offset_ + first->begin) % c10::elementSize(first->dtype) != 0) return {};
  if (!at::isFloatingType(first->dtype)) return {};
  uint64_t end = first->begin;
  std::vector<int64_t> shape = first->shape;
  shape[0] = 0;
  for (const std::string& name : names) {
    const TensorInfo* const info = find(name);
    if (info == nullptr || info->dtype != first->dtype || info->begin != end ||
        info->shape.size() != shape.size() ||
        !std::equal(shape.begin() + 1, shape.end(), info->shape.begin() + 1)) {
      return {};
    }
    shape[0] += info->shape[0];
    end = info->end;
  }
  return at::from_blob(
      file_->mapped(/*read_ahead=*/true) + data_offset_ + first->begin,
      shape,
      [file = file_](void*) {},
      at::TensorOptions().dtype(first->dtype));
}

void SafetensorsFile::let_go(std::span<const std::string> names) const {
  for (const std::string& name : names) {
    const TensorInfo* const info = find(name);
    if (info != nullptr) file_->let_go(data_offset_ + info->begin, info->end - info->begin);
  }
}

namespace {

uint64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
}

}  // namespace

WrittenFile write_safetensors(const std::filesystem::path& path,
                              std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  // Wide dtypes first, so that every tensor is aligned to its element; then by name.
  std::vector<const NamedTensor*> ordered;
  std::set<std::string_view> names;
  for (const NamedTensor& named : tensors) {
    if (!names.insert(named.name).second || named.name == "__metadata__") {
      throw Error(fmt::format("{}: tensor name {} is {}",
                              path.string(),
                              json_quoted(named.name),
                              named.name == "__metadata__" ? "reserved" : "used twice"));
    }
    ordered.push_back(&named);
  }
  std::ranges::sort(ordered, [](const NamedTensor* a, const NamedTensor* b) {
    const auto wide_a = a->tensor.element_size(), wide_b = b->tensor.element_size();
    return wide_a != wide_b ? wide_a > wide_b : a->name < b->name;
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const NamedTensor* named : ordered) {
    const uint64_t end = offset + bytes_of(named->tensor);
    header[named->name] = {{"dtype", dtype_name(named->tensor.scalar_type())},
                           {"shape", named->tensor.sizes().vec()},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = text.size();

  AtomicFile file(path, 8 + header_bytes + offset);
  file.write(&header_bytes, 8);
  file.write(text.data(), text.size());
  for (const NamedTensor* named : ordered) {
    const at::Tensor data = named->tensor.detach().cpu().contiguous();
    file.write(data.const_data_ptr(), bytes_of(data));
  }
  file.commit();
  return {.size_bytes = file.size_bytes(), .sha256 = file.sha256()};
}

}  // namespace reynard::checkpoint
