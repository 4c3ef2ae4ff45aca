#pragma once
// A file that appears whole or not at all: bytes stream to a temporary name beside it; commit()
// syncs them, renames, and syncs the folder. Without commit() nothing of it remains.

#include "reynard/checkpoint/sha256.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace reynard::checkpoint {

// Beginning of every temporary name; a leftover of a killed process starts with it.
inline constexpr std::string_view kTemporaryPrefix = ".tmp-";

class AtomicFile {
 public:
  // expected_bytes, if known, is reserved at once, so that a full disk shows before any work.
  // Throws reynard::Error when the path is a folder or a device.
  explicit AtomicFile(std::filesystem::path path, uint64_t expected_bytes = 0);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Throws reynard::Error, naming the file and the free space, when the disk is full.
  void write(const void* data, std::size_t bytes);
  // What was written is on the disk, under the temporary name: commit() has only to rename.
  void sync();
  void commit();

  uint64_t size_bytes() const { return size_bytes_; }
  // SHA-256 of what was written so far, for a file that ends with it.
  std::string sha256_so_far() const { return hash_.hex(); }
  // SHA-256 of the content, known after commit().
  const std::string& sha256() const { return sha256_; }

 private:
  bool create();  // false: the name is taken
  [[noreturn]] void fail(std::string_view step, int error_number) const;

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  uint64_t size_bytes_ = 0;
  Sha256 hash_;
  std::string sha256_;
};

// Why a file could not be written, of an errno: "No space left on device (3 MB free there); free
// some space or choose another folder".
std::string write_error_text(const std::filesystem::path& path, int error_number);

// A free name beside the path for a file that grows until commit_file(). suffix: what the name has
// to end with.
std::filesystem::path temporary_name(const std::filesystem::path& path,
                                     std::string_view suffix = {});
// Syncs what others wrote under a temporary name, renames it and syncs the folder. Where that fails
// the file is removed, and that is a reynard::Error.
void commit_file(const std::filesystem::path& temporary, const std::filesystem::path& path);

// Removes what killed processes left of this file or folder; a process that still writes keeps its
// own.
void remove_leftovers(const std::filesystem::path& path);

// Removes its leftovers, too.
void write_atomically(const std::filesystem::path& path, std::string_view bytes);

// Makes renames and new names in a folder durable.
void sync_folder(const std::filesystem::path& folder);

}  // namespace reynard::checkpoint
