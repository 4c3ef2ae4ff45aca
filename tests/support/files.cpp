#include "tests/support/files.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace reynard::test {

std::filesystem::path shared_folder() {
  const char* set = std::getenv("REYNARD_SHARED");
  const std::filesystem::path folder =
      set ? std::filesystem::path(set)
          : std::filesystem::path(REYNARD_SOURCE_DIR) / ".." / "shared";
  return std::filesystem::exists(folder / "goldens") ? folder : std::filesystem::path();
}

namespace {

// In memory where there is room: tests sync many small files, and a disk takes its time for each.
std::filesystem::path temporary_root() {
  constexpr std::uintmax_t kRoom = std::uintmax_t{1} << 30;
  const std::filesystem::path memory = "/dev/shm";
  std::error_code error;
  if (!std::getenv("TMPDIR") && std::filesystem::space(memory, error).available > kRoom && !error) {
    return memory;
  }
  return std::filesystem::temp_directory_path();
}

}  // namespace

TempDir::TempDir() : folder_(temporary_root()) {}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  if (!(out << text).flush()) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace reynard::test
