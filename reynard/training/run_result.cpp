#include "reynard/training/run_result.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/config/json_file.h"
#include "reynard/data/token_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace reynard::training {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "result.json";

}  // namespace

void write_result(const fs::path& folder, const RunResult& result) {
  nlohmann::ordered_json json = {{"steps", result.steps},
                                 {"tokens", result.tokens},
                                 {"skipped_steps", result.skipped_steps},
                                 {"seconds", result.seconds},
                                 {"loss", result.loss},
                                 {"text", result.text}};
  if (result.validation_loss) json["validation_loss"] = *result.validation_loss;
  if (!result.held_out_text.empty()) json["held_out_text"] = result.held_out_text;
  checkpoint::write_atomically(folder / kFile, json.dump(2) + "\n");
}

void remove_result(const fs::path& folder) {
  if (fs::remove(folder / kFile)) checkpoint::sync_folder(folder);
}

std::optional<RunResult> finished_result(const fs::path& folder) {
  const nlohmann::json json = config::json_object_or_null(folder / kFile);
  if (json.is_null()) return std::nullopt;
  for (const char* count : {"steps", "tokens", "skipped_steps"}) {
    if (!json.contains(count) || !json[count].is_number_integer()) return std::nullopt;
  }
  const auto number = [&](const char* name) {
    return json.contains(name) && json[name].is_number() ? json[name].get<double>() : std::nan("");
  };
  RunResult result{.finished = true,
                   .steps = json["steps"].get<int64_t>(),
                   .tokens = json["tokens"].get<int64_t>(),
                   .skipped_steps = json["skipped_steps"].get<int64_t>(),
                   .seconds = number("seconds"),
                   .loss = number("loss"),
                   .validation_loss = {}};
  if (json.contains("validation_loss")) result.validation_loss = number("validation_loss");
  const auto text = [&](const char* name) {
    return json.contains(name) && json[name].is_string() ? json[name].get<std::string>() : "";
  };
  result.text = text("text");
  result.held_out_text = text("held_out_text");
  return result;
}

std::vector<std::string> changed_texts(const Experiment& experiment, const RunResult& result) {
  std::vector<std::string> changed;
  const auto compare = [&](const char* key, const std::string& path, const std::string& before) {
    if (path.empty() || before.empty() || data::TokenFile(path).fingerprint() == before) return;
    changed.push_back(fmt::format("{} = {}", key, path));
  };
  compare("data.path", experiment.data.path, result.text);
  compare("validation.path", experiment.validation.path, result.held_out_text);
  return changed;
}

}  // namespace reynard::training
