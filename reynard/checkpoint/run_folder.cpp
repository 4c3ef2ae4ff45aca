#include "reynard/checkpoint/run_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <system_error>

namespace reynard::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::size_t kDigits = 12;  // a fixed width: names sort as numbers

bool is_checkpoint_name(std::string_view name) {
  return name.size() == kPrefix.size() + kDigits && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string_view::npos;
}

}  // namespace

std::string run_name(const fs::path& run_folder) {
  return fs::absolute(run_folder / ".").lexically_normal().parent_path().filename().string();
}

fs::path checkpoint_folder(const fs::path& run_folder, int64_t steps) {
  return run_folder / "checkpoints" / fmt::format("{}{:0{}}", kPrefix, steps, kDigits);
}

std::vector<fs::path> list_checkpoints(const fs::path& run_folder) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::directory_iterator at(run_folder / "checkpoints", error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    std::error_code gone;
    if (is_checkpoint_name(at->path().filename().string()) && at->is_directory(gone)) {
      found.push_back(at->path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace reynard::checkpoint
