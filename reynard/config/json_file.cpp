#include "reynard/config/json_file.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace reynard::config {

nlohmann::json read_json_object(const std::filesystem::path& file, uintmax_t max_bytes) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(file, error);
  if (error) throw Error(fmt::format("{}: cannot be read: {}", file.string(), error.message()));
  if (bytes > max_bytes) {
    throw Error(
        fmt::format("{}: has {} bytes; expected at most {}", file.string(), bytes, max_bytes));
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw Error(fmt::format("{}: cannot be read: {}", file.string(), std::strerror(errno)));
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw Error(fmt::format("{}: is not a JSON object", file.string()));
  return json;
}

}  // namespace reynard::config
