#include "cli/model_config.h"

#include "reynard/config/config.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <filesystem>
#include <variant>

namespace reynard::cli {

namespace {

// Section [model] of an experiment file; the others are read by `reynard train`.
models::DecoderConfig read_experiment_model(const std::string& file) {
  const config::Table table = config::parse_toml(config::read_config_file(file), file);
  const config::Node* model = table.find("model");
  if (model == nullptr || !std::holds_alternative<config::Table>(model->value)) {
    throw Error(fmt::format("{}: has no section [model]", file));
  }
  return config::from_table<models::DecoderConfig>(
      std::get<config::Table>(model->value), file, {}, "model");
}

}  // namespace

models::DecoderConfig read_model_config(const std::string& model) {
  if (std::filesystem::is_directory(model)) return models::load_config(model);
  if (model.ends_with(".toml")) return read_experiment_model(model);
  throw Error(
      fmt::format("{}: {}; expected the folder of a model or of a run, or an experiment's .toml",
                  model,
                  std::filesystem::exists(model) ? "is another file" : "does not exist"));
}

}  // namespace reynard::cli
