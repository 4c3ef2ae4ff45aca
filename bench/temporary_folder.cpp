#include "bench/temporary_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <system_error>

namespace reynard::bench {

TemporaryFolder::TemporaryFolder()
    : path_(std::filesystem::temp_directory_path() / fmt::format("reynard-bench-{}", getpid())) {
  std::filesystem::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace reynard::bench
