#include "reynard/training/metrics.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/config/json_file.h"
#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>

namespace reynard::training {

namespace {

// Rewrites the file with the whole lines up to `step`.
void keep_lines_up_to(const std::filesystem::path& path, int64_t step) {
  std::ifstream in(path);
  if (!in) return;
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    const auto object = config::parse_json_text(line);
    if (!object.is_object() || !object.contains("step")) continue;
    const nlohmann::json& of = object["step"];
    if (of.is_number_integer() && of.get<int64_t>() <= step) kept += line + "\n";
  }
  checkpoint::write_atomically(path, kept);
}

std::filesystem::path prepared(const std::filesystem::path& folder, int64_t step) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / "metrics.jsonl";
  keep_lines_up_to(path, step);
  return path;
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& folder, int64_t step)
    : path_(prepared(folder, step)), events_(folder, step + 1) {}

void MetricsLog::write(const nlohmann::ordered_json& line) {
  const std::string text = line.dump() + "\n";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path_.c_str(), "ab"),
                                                             &std::fclose);
  if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    throw Error(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
  }
  EventFile::Scalars scalars;
  for (const auto& [name, value] : line.items()) {
    if (name != "step" && value.is_number())
      scalars.emplace_back("train/" + name, value.get<double>());
  }
  events_.write(line.at("step").get<int64_t>(), scalars);
}

}  // namespace reynard::training
