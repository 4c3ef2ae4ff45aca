#include "reynard/training/saved_run.h"

#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/directory.h"
#include "reynard/checkpoint/run_folder.h"
#include "reynard/config/json_file.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/check.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

namespace reynard::training {

namespace {

namespace fs = std::filesystem;

// Members of trainer.json beside what the trainer itself keeps there.
constexpr const char* kRecentLosses = "recent_losses";
constexpr const char* kOpenLoss = "open_loss";  // sum and tokens; may be missing
constexpr const char* kOpenLine = "open_line";  // may be missing

bool is_permanent(const fs::path& folder) {
  const auto json = config::json_object_or_null(folder / "trainer.json");
  // What is damaged there is no reason to keep it.
  return json.is_object() && json.contains("permanent") && json["permanent"] == true;
}

// A folder under a temporary name is not a checkpoint: removal cannot leave half of one either.
std::error_code remove_checkpoint(const fs::path& folder) {
  const fs::path doomed =
      folder.parent_path() /
      fmt::format("{}removed-{}", checkpoint::kTemporaryPrefix, folder.filename().string());
  std::error_code error;
  fs::rename(folder, doomed, error);
  if (!error) fs::remove_all(doomed, error);
  return error;
}

// Those of later steps are damaged ones that resuming passed over: they count for nothing. Returns
// why some are still there.
std::vector<std::string> remove_old(const fs::path& newest, int64_t keep) {
  std::vector<fs::path> passing;
  for (const fs::path& folder : checkpoint::list_checkpoints(newest.parent_path().parent_path())) {
    if (folder.filename() <= newest.filename() && !is_permanent(folder)) passing.push_back(folder);
  }
  const auto num_passing = static_cast<int64_t>(passing.size());
  std::vector<std::string> problems;
  for (int64_t i = 0; i + keep < num_passing; ++i) {
    if (const std::error_code error = remove_checkpoint(passing[i])) {
      problems.push_back(
          fmt::format("{}: cannot be removed: {}", passing[i].string(), error.message()));
    }
  }
  return problems;
}

// Copies the weights of a checkpoint into the model of the experiment; the layout's config.json may
// say less than the experiment (pruning rule), so the model itself stays.
void load_weights(models::Decoder& model, const fs::path& folder) {
  models::Decoder saved = models::load_model(folder);
  std::map<std::string, at::Tensor> values;
  saved.parameters([&](const std::string& name, models::Parameter& parameter) {
    values.emplace(name, parameter.value);
  });
  const at::NoGradGuard no_grad;
  model.parameters([&](const std::string& name, models::Parameter& parameter) {
    const auto found = values.find(name);
    if (found == values.end() || found->second.sizes() != parameter.value.sizes()) {
      throw Error(fmt::format(
          "{}: its model has no `{}` of this experiment's shape", folder.string(), name));
    }
    parameter.value.copy_(found->second);
  });
}

std::vector<double> numbers(const nlohmann::json& counters, const char* name) {
  const auto list = counters.find(name);
  if (list == counters.end()) return {};
  const auto is_number = [](const nlohmann::json& number) { return number.is_number(); };
  if (!list->is_array() || !std::ranges::all_of(*list, is_number)) {
    throw Error(fmt::format("trainer.json: {} is not a list of numbers", name));
  }
  return list->get<std::vector<double>>();
}

LossesSoFar losses_of(const nlohmann::json& counters) {
  LossesSoFar losses{.recent = numbers(counters, kRecentLosses)};
  const std::vector<double> open = numbers(counters, kOpenLoss);
  if (open.size() == 2) losses.sum = open[0], losses.tokens = open[1];
  return losses;
}

nlohmann::ordered_json open_line_of(const nlohmann::json& counters) {
  const nlohmann::json line = counters.value(kOpenLine, nlohmann::json());
  if (line.is_null()) return nullptr;
  if (!line.is_object() || line.value("step", nlohmann::json()) != counters.at("step")) {
    throw Error(fmt::format("trainer.json: {} is not the step's line of metrics", kOpenLine));
  }
  return line;
}

// Returns all but the folder.
RestoredCheckpoint load(Trainer& trainer, const fs::path& folder) {
  checkpoint::verify_folder(folder);
  const nlohmann::json counters = config::read_json_object(folder / "trainer.json");
  const checkpoint::SafetensorsFile file(folder / "trainer.safetensors");
  std::vector<checkpoint::NamedTensor> moments;
  for (const checkpoint::TensorInfo& info : file.tensors()) {
    moments.push_back({info.name, file.read(info.name)});
  }
  load_weights(trainer.model(), folder);
  try {
    trainer.restore(counters, moments);
    return {.losses = losses_of(counters), .open_line = open_line_of(counters)};
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", folder.string(), error.what()));
  }
}

}  // namespace

std::vector<std::string> save_checkpoint(Trainer& trainer,
                                         const fs::path& run_folder,
                                         const CheckpointOptions& options) {
  if (!trainer.weights_finite()) {
    throw Diverged(fmt::format(
        "training: a weight is not finite after step {}; {}: lower optimizer.learning_rate = {}",
        trainer.steps(),
        checkpoint::list_checkpoints(run_folder).empty()
            ? "there is no checkpoint before it (were the first weights finite?)"
            : "the last checkpoint is intact",
        trainer.experiment().optimizer.learning_rate));
  }
  const fs::path folder = checkpoint::checkpoint_folder(run_folder, trainer.steps());
  fs::create_directories(folder.parent_path());
  checkpoint::FolderWriter writer(folder);
  models::write_model(trainer.model(), writer);
  for (const tokenizer::SavedFile& file : options.tokenizer) writer.write(file.name, file.contents);
  writer.write_tensors("trainer.safetensors", trainer.optimizer_state());
  nlohmann::json counters = trainer.counters();
  counters["permanent"] = options.permanent;
  counters[kRecentLosses] = options.losses.recent;
  counters[kOpenLoss] = {options.losses.sum, options.losses.tokens};
  if (!options.open_line.is_null()) counters[kOpenLine] = options.open_line;
  writer.write("trainer.json", counters.dump(2) + "\n");
  writer.commit();
  return remove_old(folder, trainer.experiment().training.keep_checkpoints);
}

RestoredCheckpoint restore_newest(Trainer& trainer, const fs::path& run_folder) {
  std::vector<std::string> rejected;
  const std::vector<fs::path> checkpoints = checkpoint::list_checkpoints(run_folder);
  for (auto folder = checkpoints.rbegin(); folder != checkpoints.rend(); ++folder) {
    try {
      RestoredCheckpoint restored = load(trainer, *folder);
      restored.folder = *folder;
      restored.rejected = std::move(rejected);
      return restored;
    } catch (const Error& e) {
      rejected.emplace_back(e.what());
    }
  }
  if (!checkpoints.empty()) {
    throw Error(fmt::format("--resume: no checkpoint in {} is valid; the newest: {}",
                            (run_folder / "checkpoints").string(),
                            rejected.front()));
  }
  return {};
}

}  // namespace reynard::training
