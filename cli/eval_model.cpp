// reynard eval MODEL: a model that is run here, and all checkpoints of a run.

#include "cli/command_line.h"
#include "cli/device_option.h"
#include "cli/eval_measurements.h"
#include "cli/pruning_note.h"
#include "cli/weight_option.h"
#include "reynard/checkpoint/atomic_file.h"
#include "reynard/checkpoint/sha256.h"
#include "reynard/evaluation/freed_memory.h"
#include "reynard/models/decoder.h"
#include "reynard/models/pretrained.h"
#include "reynard/models/saved_memory.h"
#include "reynard/tensor/check.h"
#include "reynard/training/saved_run.h"

#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

evaluation::ModelFacts facts_of(const models::DecoderConfig& config, int64_t train_length) {
  return {train_length,
          config.attention.log_pruning_tolerance,
          config.attention.forget_gate != models::ForgetGate::kNone,
          config.has_memory() ? config.memory.window : 0,
          config.memory.layers};
}

// `none` is what a limit of 0 means.
int64_t memory_limit(const std::string& given, int64_t own, int64_t none) {
  if (given.empty()) return own;
  if (given == "all") return 0;
  int64_t limit = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), limit);
  tensor::check_value(error == std::errc() && end == given.data() + given.size(),
                      "eval",
                      "--memory-tokens or --memory-keys",
                      given,
                      "all, or a decimal number below 2^63");
  return limit == 0 ? none : limit;
}

// What the config alone forbids: said before any weight is read.
void check_memory_options(const EvalArguments& arguments, const models::DecoderConfig& config) {
  const std::string given = memory_option(arguments);
  if (!given.empty() && (!config.has_memory() || config.memory.layers.empty())) {
    throw Error(
        fmt::format("eval: {} needs a model with a memory; {} has none", given, arguments.model));
  }
  constexpr int64_t kNone = models::Decoder::kNoMemory;
  if (!arguments.memory.empty() && memory_limit(arguments.memory_tokens, 0, kNone) == kNone) {
    throw Error(fmt::format(
        "eval: --memory-tokens {} leaves no room for --memory {}; leave one of them out",
        arguments.memory_tokens,
        arguments.memory));
  }
}

// Applies --memory-tokens and --memory-keys; what they are, for the identity of results.
nlohmann::json limit_memory(const EvalArguments& arguments, models::Decoder& decoder) {
  if (arguments.memory_tokens.empty() && arguments.memory_keys.empty()) return {};
  const models::DecoderConfig& config = decoder.config();
  constexpr int64_t kNone = models::Decoder::kNoMemory;
  decoder.set_memory_limits(memory_limit(arguments.memory_tokens, config.memory.capacity, kNone),
                            memory_limit(arguments.memory_keys, config.memory.top_k, 0));
  return {{"tokens", config.memory.capacity}, {"keys", config.memory.top_k}};
}

// What --memory names, and its digest.
std::shared_ptr<const models::StateSnapshot> saved_memory(const EvalArguments& arguments,
                                                          const ModelFolder& folder,
                                                          const models::Decoder& decoder,
                                                          nlohmann::json& identity) {
  if (arguments.memory.empty()) return {};
  auto memories = std::make_shared<models::StateSnapshot>(
      models::load_memories(decoder, folder.identity, arguments.memory));
  for (const int64_t layer : decoder.config().memory.layers) {
    const fs::path file = models::memory_file(arguments.memory, layer);
    identity[file.filename().string()] = checkpoint::sha256_hex_of_file(file);
  }
  return memories;
}

}  // namespace

std::vector<nlohmann::json> measure_model(const EvalArguments& arguments,
                                          const evaluation::EvaluationConfig& config,
                                          const ModelFolder& folder,
                                          const fs::path& output) {
  const models::DecoderConfig described = models::load_config(folder.model);
  check_memory_options(arguments, described);
  const TextCorpus text = open_texts(arguments.texts, folder, described, arguments.tokenizer);
  evaluation::return_freed_memory();
  models::Decoder decoder = models::open_model(folder.model,
                                               weight_format(arguments.dtype),
                                               reading_device(arguments.device, arguments.dtype));
  const nlohmann::json memory = limit_memory(arguments, decoder);
  print_pruning_note(decoder.config());

  const int64_t train_length =
      arguments.train_length > 0 ? arguments.train_length : folder.train_length();
  const evaluation::ModelFacts facts = facts_of(decoder.config(), train_length);
  evaluation::EvaluateOptions options;
  options.folder = output;
  options.batch_tokens = arguments.batch_tokens;
  options.identity = {{"model", folder.identity},
                      {"text", text.identity},
                      {"dtype", arguments.dtype},
                      {"device", decoder.device().is_cuda() ? "cuda" : "cpu"}};
  if (!memory.is_null()) options.identity["memory"] = memory;
  nlohmann::json files;
  const auto memories = saved_memory(arguments, folder, decoder, files);
  if (memories) options.identity["memory_files"] = files;
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
  const std::vector<fs::path> checkpoints = training::list_checkpoints(arguments.model);
  if (checkpoints.empty()) {
    throw Error(
        fmt::format("eval: --checkpoints: {} has no checkpoints/step-*; keep them with "
                    "training.keep_checkpoints",
                    arguments.model));
  }
  const fs::path output =
      arguments.output.empty() ? fs::path(arguments.model) / "eval" : fs::path(arguments.output);
  nlohmann::json points = nlohmann::json::array();
  std::string name;
  for (const fs::path& path : checkpoints) {
    const ModelFolder folder = find_model(path);
    name = folder.run_json.value("name", fs::path(arguments.model).filename().string());
    const fs::path step = path.filename();
    if (!arguments.json) fmt::print("{}\n", step.string());
    const nlohmann::json counters = read_object(path / "trainer.json");
    for (const nlohmann::json& summary :
         measure_model(arguments, config, folder, output / "checkpoints" / step)) {
      points.push_back({{"checkpoint", step.string()},
                        {"tokens", counters.value("tokens", int64_t{0})},
                        {"task", summary.at("task")},
                        {"metrics", summary.at("metrics")}});
    }
  }
  const nlohmann::json summary{{"task", "checkpoints"},
                               {"name", name},
                               {"command", command_line()},
                               {"metrics", {{"checkpoints", checkpoints.size()}}},
                               {"series", {{"points", points}}}};
  checkpoint::write_atomically(
      output / "checkpoints.json",
      summary.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace reynard::cli
