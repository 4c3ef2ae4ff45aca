#include "tests/support/report_runs.h"

#include <fmt/format.h>

namespace reynard::test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void write_json(const fs::path& file, const json& value) {
  write_file(file, value.dump());
}

void write_training(const fs::path& folder, const std::string& name) {
  write_json(folder / "run.json",
             {{"name", name},
              {"command", {"reynard", "train", "configs/a b.toml"}},
              {"parameters", 1234567},
              {"train_length", 64},
              {"machine", {{"cpu", "Example CPU"}, {"cores", 2}}}});
  std::string metrics;
  for (int step = 1; step <= 5; ++step) {
    const json line{{"step", step},
                    {"tokens", 1000 * step},
                    {"loss", 5.0 - step * 0.5},
                    {"tokens_per_s", 100.0 * step},
                    {"peak_memory_bytes", 1048576 * step},
                    {"gates_open", 0.1 * step}};
    metrics += line.dump() + "\n";
  }
  write_file(folder / "metrics.jsonl", metrics);
}

void write_losses(const fs::path& folder, double loss) {
  json positions = json::array();
  json errors = json::array();
  const json header{{"settings", {{"length", 128}}}, {"identity", {{"text", "same"}}}};
  std::string rows = header.dump() + "\n";
  for (int i = 0; i < 128; ++i) {
    positions.push_back(loss + (i < 64 ? 0 : 0.5));
    errors.push_back(0.01);
  }
  for (int row = 0; row < 4; ++row) {
    const json line{{"id", fmt::format("row {}", row)}, {"loss", loss + 0.1 * row}};
    rows += line.dump() + "\n";
  }
  write_file(folder / "eval/per_position_loss.jsonl", rows);
  write_json(
      folder / "eval/per_position_loss.json",
      {{"task", "per_position_loss"},
       {"text", kEvil},
       {"command", "reynard eval runs/x --task per_position_loss"},
       {"settings", header.at("settings")},
       {"identity", header.at("identity")},
       {"metrics", {{"loss", loss + 0.25}, {"bits_per_byte", 1.5}, {"rows", 4}}},
       {"series", {{"loss", positions}, {"standard_error", errors}, {"perplexity", positions}}}});
}

void write_forgetting_curve(const fs::path& folder, double gap) {
  json points = json::array();
  for (const int length : {32, 64, 96}) {
    const double copy = 0.3 + (length == 96 ? 0 : gap);
    points.push_back({{"length", length},
                      {"lm_mean", 0.3},
                      {"lm_std", 0.01},
                      {"copy_mean", copy},
                      {"copy_std", 0.02},
                      {"adjusted_p_value", gap > 0 ? 0.001 : 1},
                      {"noise", 0.015}});
  }
  write_json(folder / "eval/forgetting_curve.json",
             {{"task", "forgetting_curve"},
              {"settings", {{"length", 96}}},
              {"metrics",
               {{"fine_length", {{"length", 32}, {"text", "32"}}},
                {"coarse_length", {{"length", 64}, {"text", "64"}}},
                {"copies", gap > 0}}},
              {"series", {{"points", points}}}});
}

void write_pruning_and_inside(const fs::path& folder) {
  write_json(folder / "eval/pruning.json",
             {{"task", "pruning"},
              {"settings", {{"length", 64}}},
              {"metrics",
               {{"loss_pruned", 1.23456},
                {"loss_unpruned", 1.23455},
                {"loss_difference", 1e-5},
                {"pruned_share", 0.413}}},
              {"series", {{"pruned_share", {{0.25, 0.5}, {0.75, 1.0}}}}}});
  const json layer{{"attention", {{1, 0.5, 0.5}, {1, 0.9, 0.1}}},
                   {"decay", {{1, 0.5, 1}, {1, 0.1, 1}}},
                   {"gates", {{0.5, 0.25}, {0.75, 1}}},
                   {"start", {{64}, {0}}}};
  write_json(folder / "eval/inside.json",
             {{"task", "inside"},
              {"metrics", json::object()},
              {"series",
               {{"length", 128}, {"cells", 2}, {"gate_text", {"<", "b"}}, {"layers", {layer}}}}});
  write_json(folder / "eval/text_sample.json",
             {{"task", "text_sample"},
              {"metrics", json::object()},
              {"series",
               {{"samples", {{{"temperature", 0}, {"prompt", kEvil}, {"text", kEvil}}}},
                {"truth", kEvil}}}});
}

}  // namespace

void write_report_run(const fs::path& folder, const std::string& name, double loss, double gap) {
  fs::create_directories(folder / "eval");
  write_training(folder, name);
  write_losses(folder, loss);
  write_forgetting_curve(folder, gap);
  write_pruning_and_inside(folder);
}

report::Runs two_report_runs(const TempDir& folder) {
  write_report_run(folder / "a", "fox", 1.0, 0.6);
  write_report_run(folder / "b", "transformer", 1.5, 0);
  return report::read_runs({folder / "a", folder / "b"});
}

std::map<std::string, json> specs_of(const std::string& page) {
  const std::string opening = "<script type=\"application/json\" id=\"spec-";
  std::map<std::string, json> specs;
  for (size_t at = page.find(opening); at != std::string::npos; at = page.find(opening, at)) {
    at += opening.size();
    const size_t name_end = page.find("\">", at);
    const size_t begin = name_end + 2;
    specs[page.substr(at, name_end - at)] =
        json::parse(page.substr(begin, page.find('<', begin) - begin));
  }
  return specs;
}

std::vector<json> rows_with(const json& spec, const std::string& key) {
  std::vector<json> rows;
  if (spec.is_object() && spec.contains("values") && spec.at("values").is_array()) {
    for (const json& row : spec.at("values")) {
      if (row.is_object() && row.contains(key)) rows.push_back(row);
    }
  }
  if (spec.is_structured()) {
    for (const json& child : spec) {
      for (json& row : rows_with(child, key)) rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::vector<std::string> marks_of(const json& spec) {
  std::vector<std::string> labels;
  if (spec.is_object() && spec.contains(json::json_pointer("/encoding/text/value"))) {
    labels.push_back(spec.at("encoding").at("text").at("value"));
  }
  if (spec.is_structured()) {
    for (const json& child : spec) {
      for (std::string& label : marks_of(child)) labels.push_back(std::move(label));
    }
  }
  return labels;
}

}  // namespace reynard::test
