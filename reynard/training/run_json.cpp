#include "reynard/training/run_json.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/run_folder.h"
#include "reynard/config/json_file.h"
#include "reynard/training/machine.h"
#include "reynard/training/run.h"
#include "reynard/training/trainer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace reynard::training {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What a stretch of "earlier" says was changed behind it.
std::vector<std::string> changes_of(const nlohmann::ordered_json& stretch) {
  std::vector<std::string> changes;
  if (!stretch.is_object() || !stretch.contains("changed")) return changes;
  for (const nlohmann::ordered_json& change : stretch["changed"]) {
    if (change.is_string()) changes.push_back(change.get<std::string>());
  }
  return changes;
}

// Two changes with no step between them, each "key: before -> after", as one.
std::vector<std::string> joined(const std::vector<std::string>& first,
                                const std::vector<std::string>& second) {
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const std::vector<std::string>& changes : {first, second}) {
    for (const std::string& change : changes) {
      const size_t colon = change.find(": "), arrow = change.find(" -> ");
      if (arrow == std::string::npos || colon >= arrow) continue;  // not written here
      const std::string before = change.substr(colon + 2, arrow - colon - 2);
      const std::string after = change.substr(arrow + 4);
      values.try_emplace(change.substr(0, colon), before, after).first->second.second = after;
    }
  }
  std::vector<std::string> result;
  for (const auto& [key, change] : values) {
    const auto& [before, after] = change;
    if (before != after) result.push_back(fmt::format("{}: {} -> {}", key, before, after));
  }
  return result;
}

// The commands that made the run as far as `steps`, oldest first: those of the run.json of before
// and its own, unless it is the same again or trained nothing. changed: since then
// (changes_of_training()).
Json earlier_commands(const fs::path& folder,
                      int64_t steps,
                      const std::vector<std::string>& changed,
                      const RunOptions& options) {
  const Json before = config::json_object_or_null(folder / "run.json");
  if (steps == 0 || before.is_null()) return Json::array();
  const bool has_earlier = before.contains("earlier") && before["earlier"].is_array();
  Json earlier = has_earlier ? before["earlier"] : Json::array();
  const Json command = before.contains("command") ? before["command"] : Json::array();
  const Json revision = before.contains("git_revision") ? before["git_revision"] : Json("");
  Json stretch = {{"command", command}, {"git_revision", revision}, {"until_step", steps}};
  std::vector<std::string> changes = changed;
  if (!earlier.empty() && earlier.back().is_object() &&
      earlier.back().value("until_step", Json()) == steps) {
    stretch = earlier.back();
    changes = joined(changes_of(stretch), changed);
    stretch.erase("changed");
    earlier.erase(earlier.size() - 1);
  }
  const bool same = stretch.value("command", Json()) == Json(options.command) &&
                    stretch.value("git_revision", Json()) == Json(git_revision());
  if (same && changes.empty()) return earlier;
  if (!changes.empty()) stretch["changed"] = changes;
  earlier.push_back(stretch);
  return earlier;
}

}  // namespace

void write_run_json(Trainer& trainer,
                    const std::vector<std::string>& changed,
                    const RunOptions& options) {
  const Experiment& experiment = trainer.experiment();
  const fs::path folder = experiment.run.folder;
  int64_t parameters = 0, embedding = 0;
  trainer.model().parameters([&](const std::string& name, models::Parameter& parameter) {
    parameters += parameter.value.numel();
    if (name == "model.embeddings.weight") embedding = parameter.value.numel();
  });
  const Json json = {{"name", checkpoint::run_name(folder)},
                     {"command", options.command},
                     {"git_revision", git_revision()},
                     {"earlier", earlier_commands(folder, trainer.steps(), changed, options)},
                     {"version", options.version},
                     {"machine", machine_description(trainer.device())},
                     {"parameters", parameters},
                     {"non_embedding_parameters", parameters - embedding},
                     {"train_length", experiment.data.length}};
  // The command's words need not be UTF-8.
  checkpoint::write_atomically(folder / "run.json", config::json_text(json, 2) + "\n");
}

std::vector<std::string> settings_changed_on_the_way(const fs::path& folder) {
  std::vector<std::string> changed;
  const nlohmann::json run = config::json_object_or_null(folder / "run.json");
  if (run.is_null() || !run.contains("earlier") || !run["earlier"].is_array()) return changed;
  for (const nlohmann::json& stretch : run["earlier"]) {
    for (std::string& change : changes_of(stretch)) changed.push_back(std::move(change));
  }
  return changed;
}

}  // namespace reynard::training
