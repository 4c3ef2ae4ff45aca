#include "cli/claimed_folder.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

namespace reynard::cli {

namespace fs = std::filesystem;

ClaimedFolder::ClaimedFolder(fs::path folder)
    : folder_(std::move(folder)), is_own_(fs::create_directories(folder_)) {
  lock_.emplace(folder_);
}

ClaimedFolder::~ClaimedFolder() {
  std::error_code holds_the_output;
  if (is_own_) fs::remove(folder_, holds_the_output);
}

void check_leads_somewhere(std::string_view command, const fs::path& folder) {
  if (!fs::is_symlink(folder) || fs::exists(folder)) return;
  throw Error(fmt::format("{}: {} is a link that leads nowhere; remove it or name another folder",
                          command,
                          folder.string()));
}

}  // namespace reynard::cli
