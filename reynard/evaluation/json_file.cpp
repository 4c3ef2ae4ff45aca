#include "reynard/evaluation/json_file.h"

#include "reynard/data/random.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <system_error>

namespace reynard::evaluation {

namespace {

constexpr uintmax_t kMostBytes = uintmax_t{1} << 30;

}  // namespace

std::string read_text_file(const std::filesystem::path& path,
                           std::string_view task,
                           std::string_view where_to_get) {
  std::error_code failed;
  const uintmax_t bytes = std::filesystem::file_size(path, failed);
  if (failed) {
    throw Error(fmt::format("{}: {}: {}{}{}",
                            task,
                            path.string(),
                            failed.message(),
                            where_to_get.empty() ? "" : "; ",
                            where_to_get));
  }
  if (bytes > kMostBytes) {
    throw Error(fmt::format("{}: {} is larger than 1 GiB", task, path.string()));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw Error(fmt::format("{}: cannot read {}", task, path.string()));
  return std::move(text).str();
}

nlohmann::json read_json_file(const std::filesystem::path& path,
                              std::string_view task,
                              std::string_view where_to_get) {
  nlohmann::json json = nlohmann::json::parse(
      read_text_file(path, task, where_to_get), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) throw Error(fmt::format("{}: {} is not JSON", task, path.string()));
  return json;
}

std::string fingerprint(const std::filesystem::path& path, std::string_view task) {
  return fmt::format("{:016x}", data::hash(read_text_file(path, task)));
}

JsonLines read_json_lines(const std::filesystem::path& path,
                          std::string_view task,
                          bool skip_bad,
                          std::string_view where_to_get) {
  JsonLines result;
  std::istringstream in(read_text_file(path, task, where_to_get));
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) {
      result.lines.push_back(std::move(json));
      result.numbers.push_back(number);
    } else if (skip_bad) {
      ++result.skipped;
    } else {
      throw Error(fmt::format("{}: {}:{} is not a JSON object; --skip-bad leaves such lines out",
                              task,
                              path.string(),
                              number));
    }
  }
  return result;
}

}  // namespace reynard::evaluation
