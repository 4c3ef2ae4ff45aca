// reynard eval MODEL: a model that is run here, and all checkpoints of a run.

#include "cli/command_line.h"
#include "cli/device_option.h"
#include "cli/eval_measurements.h"
#include "cli/pruning_note.h"
#include "cli/weight_option.h"
#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/run_folder.h"
#include "reynard/config/json_file.h"
#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/freed_memory.h"
#include "reynard/knn/memory_file.h"
#include "reynard/models/decoder.h"
#include "reynard/models/families/json_fields.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/saved_memory.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

evaluation::ModelFacts facts_of(const models::DecoderConfig& config, int64_t train_length) {
  return {train_length,
          config.attention.log_pruning_tolerance,
          config.attention.forget_gate != models::ForgetGate::kNone,
          config.has_memory() ? config.memory.window : 0,
          config.memory.layers,
          config.memory.capacity,
          config.vocab_size};
}

// What limits the memory and what it begins with, for the identity of results. Files have been
// loaded: their digests are right.
nlohmann::json memory_identity(const MemoryArguments& arguments,
                               const models::MemoryConfig& config) {
  nlohmann::json identity = nlohmann::json::object();
  if (!arguments.tokens.empty() || !arguments.keys.empty()) {
    identity["memory"] = {{"tokens", config.capacity}, {"keys", config.top_k}};
  }
  // Attention to all keys rounds as the place cuts them.
  if (!arguments.place.empty() && config.top_k == 0) identity["memory_place"] = arguments.place;
  if (arguments.folder.empty()) return identity;
  for (const int64_t layer : config.layers) {
    const fs::path file = models::memory_file(arguments.folder, layer);
    identity["memory_files"][file.filename().string()] = knn::written_digest(file);
  }
  return identity;
}

// By a run until its checkpoint with these counters.
int64_t tokens_seen(const fs::path& counters) {
  try {
    const nlohmann::json json = config::read_json_object(counters);
    const std::string file = counters.string();
    return models::JsonFields(json, file).integer("tokens");
  } catch (const Error& error) {
    throw Error(fmt::format(
        "eval: --checkpoints: {}; copy the checkpoint again from where it is whole, or remove it",
        error.what()));
  }
}

}  // namespace

std::vector<nlohmann::json> measure_model(const EvalArguments& arguments,
                                          const evaluation::EvaluationConfig& config,
                                          const ModelFolder& folder,
                                          const fs::path& output) {
  const models::DecoderConfig described = models::load_config(folder.model);
  check(arguments.memory, arguments.model, described);
  const TextCorpus text = open_texts(arguments.texts, folder, described, arguments.tokenizer);
  evaluation::return_freed_memory();
  models::Decoder decoder = models::open_model(folder.model,
                                               weight_format(arguments.dtype),
                                               reading_device(arguments.device, arguments.dtype));
  apply(arguments.memory, decoder);
  print_pruning_note(decoder.config());

  const int64_t train_length =
      arguments.train_length > 0 ? arguments.train_length : folder.train_length();
  const evaluation::ModelFacts facts = facts_of(decoder.config(), train_length);
  evaluation::EvaluateOptions options;
  options.folder = output;
  options.batch_tokens = arguments.batch_tokens;
  const std::string identity = folder.identity();
  options.identity = {{"model", identity},
                      {"text", text.identity},
                      {"dtype", arguments.dtype},
                      {"device", decoder.device().is_cuda() ? "cuda" : "cpu"}};
  const auto memories = load_memories(arguments.memory, identity, decoder);
  options.identity.update(memory_identity(arguments.memory, decoder.config().memory));
  options.about = {{"name", folder.name},
                   {"model", folder.model.string()},
                   {"text", text.name},
                   {"train_length", train_length},
                   {"command", command_line()}};

  const auto scorer = evaluation::make_decoder_scorer(decoder, arguments.batch_tokens, memories);
  return measure_tasks(arguments, config, text.corpus, facts, *scorer, std::move(options));
}

void measure_checkpoints(const EvalArguments& arguments,
                         const evaluation::EvaluationConfig& config) {
  const std::vector<fs::path> checkpoints = checkpoint::list_checkpoints(arguments.model);
  if (checkpoints.empty()) {
    throw Error(
        fmt::format("eval: --checkpoints: {} has no checkpoints/step-*; keep them with "
                    "training.keep_checkpoints",
                    arguments.model));
  }
  const fs::path output =
      arguments.output.empty() ? fs::path(arguments.model) / "eval" : fs::path(arguments.output);
  const fs::path file = output / "checkpoints.json";
  evaluation::earlier_summary(file);
  nlohmann::json points = nlohmann::json::array();
  std::string name;
  for (const fs::path& path : checkpoints) {
    const ModelFolder folder = find_model(path);
    name = folder.run_json.value("name", fs::path(arguments.model).filename().string());
    const fs::path step = path.filename();
    const int64_t tokens = tokens_seen(path / "trainer.json");
    if (!arguments.json) fmt::print("{}\n", step.string());
    for (const nlohmann::json& summary :
         measure_model(arguments, config, folder, output / "checkpoints" / step)) {
      points.push_back({{"checkpoint", step.string()},
                        {"tokens", tokens},
                        {"task", summary.at("task")},
                        {"metrics", summary.at("metrics")}});
    }
  }
  const nlohmann::json summary{{"task", "checkpoints"},
                               {"name", name},
                               {"command", command_line()},
                               {"metrics", {{"checkpoints", checkpoints.size()}}},
                               {"series", {{"points", points}}}};
  checkpoint::write_atomically(file, config::json_text(summary, 1) + "\n");
}

}  // namespace reynard::cli
