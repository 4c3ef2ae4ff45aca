#include "reynard/evaluation/task_files.h"

#include "reynard/config/json_file.h"
#include "reynard/config/text_file.h"
#include "reynard/data/random.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <sstream>

namespace reynard::evaluation {

namespace {

constexpr uintmax_t kMostBytes = uintmax_t{1} << 30;

}  // namespace

std::string read_task_text(const std::filesystem::path& path,
                           std::string_view task,
                           std::string_view where_to_get) {
  try {
    return config::read_text_file(path, kMostBytes);
  } catch (const Error& error) {
    throw Error(fmt::format(
        "{}: {}{}{}", task, error.what(), where_to_get.empty() ? "" : "; ", where_to_get));
  }
}

nlohmann::json read_json_file(const std::filesystem::path& path,
                              std::string_view task,
                              std::string_view where_to_get) {
  nlohmann::json json = config::parse_json_text(read_task_text(path, task, where_to_get));
  if (json.is_discarded()) throw Error(fmt::format("{}: {} is not JSON", task, path.string()));
  return json;
}

std::string fingerprint(const std::filesystem::path& path, std::string_view task) {
  return fmt::format("{:016x}", data::hash(read_task_text(path, task)));
}

JsonLines read_json_lines(const std::filesystem::path& path,
                          std::string_view task,
                          bool skip_bad,
                          std::string_view where_to_get) {
  JsonLines result;
  std::istringstream in(read_task_text(path, task, where_to_get));
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    nlohmann::json json = config::parse_json_text(line);
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
