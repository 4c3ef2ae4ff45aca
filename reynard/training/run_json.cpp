#include "reynard/training/run_json.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/run_folder.h"
#include "reynard/config/json_file.h"
#include "reynard/training/machine.h"
#include "reynard/training/run.h"
#include "reynard/training/trainer.h"

#include <nlohmann/json.hpp>

#include <cstdint>

namespace reynard::training {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// The commands that made the run as far as `steps`, oldest first: those of the run.json of before
// and its own, unless it is the same again. changed: since then (changes_of_training()).
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
  const bool same = command == Json(options.command) && revision == Json(git_revision());
  if (same && changed.empty()) return earlier;
  earlier.push_back({{"command", command}, {"git_revision", revision}, {"until_step", steps}});
  if (!changed.empty()) earlier.back()["changed"] = changed;
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
    if (!stretch.is_object() || !stretch.contains("changed")) continue;
    for (const nlohmann::json& change : stretch["changed"]) {
      if (change.is_string()) changed.push_back(change.get<std::string>());
    }
  }
  return changed;
}

}  // namespace reynard::training
