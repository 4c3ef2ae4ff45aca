#pragma once
// A folder that a command writes, kept to its process while it works.

#include "reynard/checkpoint/directory.h"

#include <filesystem>
#include <optional>
#include <string_view>

namespace reynard::cli {

// Holds the name of the output by a folder, which it makes where there is none: of two processes
// that write to it the second is refused with a reynard::Error. One that it made and that is still
// empty in the end is removed.
class ClaimedFolder {
 public:
  explicit ClaimedFolder(std::filesystem::path folder);
  ~ClaimedFolder();
  ClaimedFolder(const ClaimedFolder&) = delete;
  ClaimedFolder& operator=(const ClaimedFolder&) = delete;

 private:
  std::filesystem::path folder_;
  bool is_own_ = false;  // not one that the user made
  std::optional<checkpoint::FolderLock> lock_;
};

// Throws reynard::Error where the output is a link to something that does not exist: no folder can
// be made there.
void check_leads_somewhere(std::string_view command, const std::filesystem::path& folder);

}  // namespace reynard::cli
