#pragma once
// Reader and writer of safetensors files (github.com/huggingface/safetensors, format 0.4+). The
// reader treats a file as hostile: all of the header is checked against the file before anything is
// allocated, and each failure is one reynard::Error naming file, tensor and what is wrong.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace reynard::checkpoint {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// One tensor as the header describes it.
struct TensorInfo {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes [begin, end) of the data section
  uint64_t end = 0;
};

class ReadOnlyFile;

// One .safetensors file, held open; tensors are read out on demand.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // nullptr when there is no such tensor.
  const TensorInfo* find(const std::string& name) const;
  // A copy in the file's dtype. Throws reynard::Error when there is no such tensor.
  at::Tensor read(const std::string& name) const;
  // The rows of these tensors as one tensor in the file's own memory pages, which come in when they
  // are read, are shared with the page cache and must never be written. Undefined where they do not
  // follow each other in the file with one dtype and row shape, aligned to their elements. A file
  // that becomes shorter while it is mapped ends the process with SIGBUS.
  at::Tensor map(std::span<const std::string> names) const;
  // Takes the pages of these tensors out of the process, if they were mapped: for values that have
  // been copied elsewhere. Whoever reads the mapped tensor again brings them back.
  void let_go(std::span<const std::string> names) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::shared_ptr<const ReadOnlyFile> file_;
  uint64_t data_offset_ = 0;  // of the data section in the file
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::unordered_map<std::string, std::size_t> index_;
};

// The tensors of a model folder: `STEM.safetensors`, or the shards that
// `STEM.safetensors.index.json` lists.
class TensorFolder {
 public:
  explicit TensorFolder(const std::filesystem::path& folder, const std::string& stem = "model");

  std::vector<std::string> names() const;  // sorted
  const TensorInfo* find(const std::string& name) const;
  at::Tensor read(const std::string& name) const;
  // SafetensorsFile::map where one file holds all of them, undefined elsewhere.
  at::Tensor map(std::span<const std::string> names) const;
  void let_go(std::span<const std::string> names) const;
  // The file that holds the tensor, for messages; the folder when none does.
  std::filesystem::path file_of(const std::string& name) const;

 private:
  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::size_t> file_of_;  // tensor name -> index in files_
};

struct WrittenFile {
  uint64_t size_bytes = 0;
  std::string sha256;  // of the whole file
};

// Streams the tensors (any device, any strides; F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL) to `path`,
// which appears whole or not at all. Lossless. Names must be unique.
WrittenFile write_safetensors(const std::filesystem::path& path,
                              std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace reynard::checkpoint
