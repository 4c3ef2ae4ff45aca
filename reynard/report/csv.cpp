#include "reynard/report/csv.h"

#include "reynard/config/json_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::report {

namespace {

using nlohmann::json;

std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

// By a part of the metric's name, the first that it has. Scores and shares are of 1.
std::string_view unit_of(std::string_view metric) {
  constexpr std::pair<std::string_view, std::string_view> kUnits[] = {
      {"bits_per_byte", "bits/byte"},
      {"loss", "nats/token"},
      {"tokens", "tokens"},
      {"length", "tokens"},
  };
  for (const auto& [part, unit] : kUnits) {
    if (metric.find(part) != std::string_view::npos) return unit;
  }
  return "";
}

// "standard_error" among the metrics is that of one of them (docs/formats.md).
json standard_error_of(const json& summary, const std::string& metric) {
  const json& metrics = summary.at("metrics");
  for (const char* main : {"loss_difference", "loss", "score"}) {
    if (!metrics.contains(main)) continue;
    if (metric == main) return metrics.value("standard_error", json());
    break;
  }
  for (const json& group : list_at(summary, "/series/groups")) {  // of lm_eval
    if (text_at(group, "/task") + "/" + text_at(group, "/metric") == metric) {
      return group.value("standard_error", json());
    }
  }
  return json();
}

void add_numbers(const json& metrics,
                 const std::string& prefix,
                 std::vector<std::pair<std::string, json>>& numbers) {
  for (const auto& [key, value] : metrics.items()) {
    if (is_token_id(prefix + key)) continue;
    if (value.is_number() && key != "standard_error") numbers.emplace_back(prefix + key, value);
    if (value.is_object() && prefix.empty()) add_numbers(value, key + "/", numbers);
  }
}

}  // namespace

std::string csv(const Runs& runs) {
  std::string table(kCsvHeader);
  for (const RunResults& run : runs) {
    for (const auto& [task, summary] : run.evaluations) {
      if (!summary.contains("metrics") || !summary.at("metrics").is_object()) continue;
      std::vector<std::pair<std::string, json>> numbers;
      add_numbers(summary.at("metrics"), "", numbers);
      for (const auto& [metric, value] : numbers) {
        const json error = standard_error_of(summary, metric);
        table += fmt::format("{},{},{},{},{},{}\r\n",
                             field(run.name),
                             field(task),
                             field(metric),
                             config::json_text(value),
                             error.is_number() ? config::json_text(error) : "",
                             unit_of(metric));
      }
    }
  }
  return table;
}

}  // namespace reynard::report
