#include "reynard/checkpoint/safetensors.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/safetensors_header.h"
#include "reynard/tensor/check.h"
#include "reynard/tensor/counted.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>

namespace reynard::checkpoint {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

// Read with pread where a copy is made anyway: a file that shrinks under us is then an error, not a
// SIGBUS. Mapped where weights are only read.
class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(const std::filesystem::path& path) : path_(path) {
    // Without O_NONBLOCK a fifo would be waited for.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) fail("cannot be read", errno);
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(descriptor_);
      throw Error(fmt::format("{}: is not a regular file", path.string()));
    }
    size_bytes_ = static_cast<uint64_t>(status.st_size);
  }
  ~ReadOnlyFile() {
    if (mapping_ != nullptr) ::munmap(mapping_, size_bytes_);
    ::close(descriptor_);
  }
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  uint64_t size_bytes() const { return size_bytes_; }

  // All of the file, read only: such pages are no data of the process, whatever limits that.
  char* mapped() const {
    const std::lock_guard lock(mutex_);
    if (mapping_ == nullptr) {
      void* const mapping = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, descriptor_, 0);
      if (mapping == MAP_FAILED) fail("cannot be mapped", errno);
      ::madvise(mapping, size_bytes_, MADV_WILLNEED);
      mapping_ = mapping;
    }
    return static_cast<char*>(mapping_);
  }

  // The pages that hold these bytes; those of the ends too, which cost a neighbour a page fault.
  void let_go(uint64_t offset, uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    if (mapping_ == nullptr || bytes == 0) return;
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    const uint64_t first = offset / page * page;
    ::madvise(static_cast<char*>(mapping_) + first, offset + bytes - first, MADV_DONTNEED);
  }

  void read(uint64_t offset, void* data, std::size_t bytes) const {
    char* rest = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t got = ::pread(
          descriptor_, rest, std::min<std::size_t>(bytes, 1 << 30), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("reading failed", errno);
      if (got == 0) throw Error(fmt::format("{}: became shorter while read", path_.string()));
      rest += got;
      offset += static_cast<uint64_t>(got);
      bytes -= static_cast<std::size_t>(got);
    }
  }

 private:
  [[noreturn]] void fail(std::string_view step, int error_number) const {
    throw Error(fmt::format("{}: {}: {}", path_.string(), step, std::strerror(error_number)));
  }

  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
  mutable std::mutex mutex_;
  mutable void* mapping_ = nullptr;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(std::make_shared<ReadOnlyFile>(path)) {
  const std::string name = path.string();
  const uint64_t file_bytes = file_->size_bytes();
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
      file_->mapped() + data_offset_ + first->begin,
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
