#pragma once
// The course of a run on disk: metrics.jsonl and TensorBoard event files, with the same scalars.
// Fields: docs/formats.md.

#include "reynard/training/event_file.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>

namespace reynard::training {

class MetricsLog {
 public:
  // Goes on after `step`: lines of later steps, and a line that was cut short, are removed first.
  MetricsLog(const std::filesystem::path& folder, int64_t step);

  // line: an object of numbers with "step"; appended before it returns.
  void write(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path path_;
  EventFile events_;
};

}  // namespace reynard::training
