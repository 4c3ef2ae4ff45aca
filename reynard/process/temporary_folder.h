#pragma once
// A folder of this process that goes away with its owner, and all that is in it.

#include <filesystem>

namespace reynard::process {

class TemporaryFolder {
 public:
  // A new folder in `parent`. Throws reynard::Error, naming it, where none can be made there.
  explicit TemporaryFolder(
      const std::filesystem::path& parent = std::filesystem::temp_directory_path());
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace reynard::process
