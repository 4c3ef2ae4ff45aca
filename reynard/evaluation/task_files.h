#pragma once
// Data files that a user gives to a task, read whole.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

// Throws reynard::Error, naming the task and the file, when it cannot be read or has more than
// 1 GiB. where_to_get: what a user can do who does not have the file.
std::string read_task_text(const std::filesystem::path& path,
                           std::string_view task,
                           std::string_view where_to_get = "");

// The same, and that it is JSON.
nlohmann::json read_json_file(const std::filesystem::path& path,
                              std::string_view task,
                              std::string_view where_to_get = "");

// 16 hex digits that stand for the bytes of a file: settings of tasks hold them, so that samples of
// other data under the same name are not taken for these. Throws like read_task_text.
std::string fingerprint(const std::filesystem::path& path, std::string_view task);

// The objects of a file with one in each line; blank lines are left out. A line that is none is an
// error that names its number, or with skip_bad left out and counted.
struct JsonLines {
  std::vector<nlohmann::json> lines;
  std::vector<int64_t> numbers;  // of each line, from 1
  int64_t skipped = 0;
};
JsonLines read_json_lines(const std::filesystem::path& path,
                          std::string_view task,
                          bool skip_bad,
                          std::string_view where_to_get = "");

}  // namespace reynard::evaluation
