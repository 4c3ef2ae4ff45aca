#include "reynard/config/text_file.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

namespace reynard::config {

std::string read_text_file(const std::filesystem::path& file, uintmax_t max_bytes) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    throw Error(fmt::format("{}: is a folder; expected a file", file.string()));
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error(fmt::format("{}: cannot be read: {}", file.string(), strerror(errno)));
  std::string text;
  char block[1 << 16];
  while (in.read(block, sizeof block) || in.gcount() > 0) {
    text.append(block, static_cast<std::size_t>(in.gcount()));
    if (text.size() > max_bytes) {
      throw Error(
          fmt::format("{}: has more than {} bytes, the most expected", file.string(), max_bytes));
    }
  }
  if (in.bad()) throw Error(fmt::format("{}: cannot be read: {}", file.string(), strerror(errno)));
  return text;
}

}  // namespace reynard::config
