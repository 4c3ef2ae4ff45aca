#pragma once
// Folders that appear whole or not at all, with the SHA-256 of every file in checksums.json. What
// a killed process leaves behind has a temporary name and is never taken for a folder.

#include "reynard/checkpoint/safetensors.h"

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace reynard::checkpoint {

inline constexpr std::string_view kChecksums = "checksums.json";

// Keeps a folder, which must exist, to one process until this object or the process ends, however
// it ends. Throws reynard::Error where another process has it.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

// Collects files under a temporary name, after removing what killed writers of `target` left;
// commit() makes them the folder `target`, replacing one that is there. Every failure (a full disk
// too) throws reynard::Error, leaves the old folder as it was and removes the new one.
class FolderWriter {
 public:
  explicit FolderWriter(std::filesystem::path target);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  void write(const std::string& name, std::string_view bytes);
  void write_tensors(const std::string& name,
                     std::span<const NamedTensor> tensors,
                     const std::map<std::string, std::string>& metadata = {});
  void commit();

 private:
  struct Digest {
    uint64_t size_bytes;
    std::string sha256;
  };
  std::filesystem::path target_, temporary_;
  std::optional<FolderLock> lock_;  // of the temporary one
  std::map<std::string, Digest> digests_;
  bool committed_ = false;
};

// Whether the folder carries checksums (published model folders do not).
bool has_checksums(const std::filesystem::path& folder);

// Compares every file with checksums.json. Throws reynard::Error naming the first file that is
// missing, of another size or of other content, or checksums.json itself when it is missing or
// malformed. Files that it does not list are no error.
void verify_folder(const std::filesystem::path& folder);

// Removes what killed writers left in `parent` of files and folders whose names begin with this; a
// process that still writes keeps its own.
void remove_unfinished(const std::filesystem::path& parent, std::string_view names = {});

}  // namespace reynard::checkpoint
