#pragma once
// The file of a memory (docs/formats.md): what its header says, with every check against the size
// of the file before anything is allocated or mapped.

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/read_only_file.h"
#include "reynard/checkpoint/sha256.h"
#include "reynard/knn/memory.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::knn {

// Throws reynard::Error, beginning with `where`, for sizes out of range.
void check_memory_options(std::string_view where, const MemoryOptions& options);

struct MemoryFileRow {
  int64_t first = 0, next = 0;  // ids of the row's entries
};

struct MemoryFileHeader {
  MemoryOptions options;
  std::vector<MemoryFileRow> rows;
};

// Takes the bytes of keys, then of values, row by row. An object that is destroyed before commit()
// leaves nothing behind.
class MemoryFileWriter {
 public:
  MemoryFileWriter(const std::filesystem::path& path, const MemoryFileHeader& header);
  void write(const void* data, size_t bytes) { file_.write(data, bytes); }
  void end_section();  // the keys or the values of a row are complete
  void finish();       // writes the digest and syncs; nothing can be written after it
  void commit();       // gives the finished file its name

 private:
  checkpoint::AtomicFile file_;
};

// Throws reynard::Error when there is no file that can be opened: all that is told without reading.
void check_opens(const std::filesystem::path& path);

// The digest at the file's end, which Memory::load and Memory::map compare with the content.
std::string written_digest(const std::filesystem::path& path);

// Reads the file once, from its begin to its end.
class MemoryFile {
 public:
  // num_rows: as Memory::load. Throws reynard::Error when the file is missing, cut short,
  // inconsistent, of another layer or of other rows.
  MemoryFile(const std::filesystem::path& path, const MemoryLayer& of, int64_t num_rows = 0);

  const MemoryFileHeader& header() const { return header_; }
  const std::shared_ptr<const checkpoint::ReadOnlyFile>& on_disk() const { return file_; }
  // Where the keys (G,n,D) and the values of a row begin.
  int64_t keys_at(int64_t row) const { return keys_at_[static_cast<size_t>(row)]; }
  int64_t values_at(int64_t row) const { return values_at_[static_cast<size_t>(row)]; }
  // offset: at least where the last call ended.
  void read(int64_t offset, void* data, size_t bytes);
  // Reads the rest. Throws reynard::Error when the content is not what was written.
  void check_digest();

 private:
  const std::filesystem::path& path() const { return file_->path(); }
  int64_t size_bytes() const { return file_->size_bytes(); }
  void read_header(const MemoryLayer& of, int64_t num_rows);
  void read_rows();
  void place_sections();
  void skip_to(int64_t offset);

  std::shared_ptr<const checkpoint::ReadOnlyFile> file_;
  MemoryFileHeader header_;
  std::vector<int64_t> keys_at_, values_at_;
  checkpoint::Sha256 hash_;  // of the first position_ bytes
  int64_t position_ = 0;
};

}  // namespace reynard::knn
