#include "cli/text_model.h"

#include "cli/device_option.h"
#include "cli/end_tokens.h"
#include "cli/evaluation_inputs.h"
#include "cli/model_tokenizer.h"
#include "cli/numbers.h"
#include "cli/special_texts.h"
#include "cli/weight_option.h"
#include "reynard/config/json_file.h"
#include "reynard/config/text_file.h"
#include "reynard/models/pretrained.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <filesystem>

namespace reynard::cli {

namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxConfigBytes = 4 << 20;

std::unique_ptr<tokenizer::Tokenizer> open_tokenizer(const TextModelArguments& arguments,
                                                     const fs::path& folder,
                                                     int64_t vocab_size) {
  const std::string name = tokenizer_of_model(folder, vocab_size, arguments.tokenizer);
  if (!name.empty()) return tokenizer::make_tokenizer(name);
  throw Error(fmt::format("{}: has no tokenizer and a vocabulary of {}; name one with --tokenizer",
                          folder.string(),
                          vocab_size));
}

// How a prompt begins: as the tokenizer's template says; where it says nothing, with the model's
// BOS, unless the folder denies it. What a run trained began its documents with BOS, whatever the
// folder of its tokenizer says; models that earlier versions trained name none, and it is the
// tokenizer's.
void adopt_beginning(TextModel& model) {
  model.uses_template = !model.tokenizer->encode("", {.add_template = true}).empty();
  const nlohmann::json says =
      config::json_object_or_null(model.folder / "tokenizer_config.json", kMaxConfigBytes);
  const bool has_none = says.is_object() &&
                        says.value("add_bos_token", nlohmann::json()) == false &&
                        find_model(model.folder).run.empty();
  if (model.uses_template || has_none) return;
  const models::DecoderConfig& config = model.decoder.config();
  model.bos = config.bos_token_id;
  if (!model.bos && config.vocab_size == model.tokenizer->vocab_size()) {
    model.bos = model.tokenizer->bos();
  }
}

// The text under "chat_template": one, or of several that named "default".
std::string template_in(const nlohmann::json& json) {
  const nlohmann::json none;
  const auto text_at = [&](const nlohmann::json& object, const char* key) {
    const nlohmann::json value = object.is_object() ? object.value(key, none) : none;
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  const nlohmann::json several = json.is_object() ? json.value("chat_template", none) : none;
  if (!several.is_array()) return text_at(json, "chat_template");
  for (const nlohmann::json& entry : several) {
    if (text_at(entry, "name") == "default") return text_at(entry, "template");
  }
  return "";
}

}  // namespace

void add_options(CLI::App& command, TextModelArguments& arguments) {
  command.add_option("MODEL", arguments.model, "model folder or run folder")->required();
  command.add_option("--tokenizer",
                     arguments.tokenizer,
                     "\"byte\", a tokenizer file or a folder; by default that of the model");
  add_weight_option(command, arguments.dtype);
  add_device_option(command, arguments.device);
  command
      .add_option(
          "--log-tolerance",
          arguments.log_tolerance,
          "natural log of the attention mass that pruning and eviction may drop together; 0: "
          "off; by default the model's")
      ->check(between(-1e4, 0));
  command.add_flag("--evict-measured",
                   arguments.evict_measured,
                   "for models with forget gates but without QK-norm, which otherwise keep every "
                   "page: free pages as if no later query or key were longer than those so far (a "
                   "heuristic; needs a tolerance)");
  command.add_flag(
      "--int8-cache",
      arguments.int8_cache,
      "keep keys and values of the text as int8 with a scale per row: half of the "
      "memory of bf16, a rounding error of up to 0.4 % of a row's largest value (CPU)");
  add_options(command, arguments.memory);
}

std::vector<int64_t> TextModel::encode(std::string_view prompt) const {
  const std::vector<int32_t> ids = tokenizer->encode(prompt, {.add_template = uses_template});
  std::vector<int64_t> tokens;
  if (bos) tokens.push_back(*bos);
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  return tokens;
}

generation::ChatTemplate chat_template_of(const TextModel& model, const std::string& name) {
  const generation::SpecialTexts special = special_texts(model.folder, *model.tokenizer);
  if (!name.empty()) {
    return fs::is_regular_file(name)
               ? generation::ChatTemplate::published(
                     config::read_text_file(name, kMaxConfigBytes), name, special)
               : generation::ChatTemplate::named(name, special);
  }
  const fs::path own = model.folder / "chat_template.jinja";
  if (fs::exists(own)) {
    return generation::ChatTemplate::published(
        config::read_text_file(own, kMaxConfigBytes), own.string(), special);
  }
  for (const char* file : {"chat_template.json", "tokenizer_config.json"}) {
    const fs::path path = model.folder / file;
    const std::string source = template_in(config::json_object_or_null(path, kMaxConfigBytes));
    if (!source.empty()) {
      return generation::ChatTemplate::published(source, path.string(), special);
    }
  }
  throw Error(
      fmt::format("{}: has no chat template; name one with --chat-template: chatml, llama2, "
                  "llama3, longllama or a file",
                  model.folder.string()));
}

namespace {

constexpr const char* kNothingForgotten = "has no forget gates, so nothing is ever forgotten";

void check_tolerance(const models::DecoderConfig& config, double log_tolerance) {
  if (log_tolerance < 0 && config.attention.forget_gate == models::ForgetGate::kNone) {
    throw Error(
        fmt::format("--log-tolerance {:g}: the model {}", log_tolerance, kNothingForgotten));
  }
}

void check_measured_eviction(const models::DecoderConfig& config,
                             const TextModelArguments& arguments) {
  const models::AttentionMixerConfig& attention = config.attention;
  const char* obstacle =
      config.has_memory()
          ? "reads local contexts, whose pages are freed when they end; leave the option out"
      : config.mixer != "attention" || attention.forget_gate == models::ForgetGate::kNone
          ? kNothingForgotten
      : attention.qk_norm != models::QKNorm::kNone
          ? "has QK-norm: its pages are freed by a bound that holds; leave the option out"
      : arguments.log_tolerance.value_or(attention.log_pruning_tolerance) == 0
          ? "has no pruning tolerance; give one, such as --log-tolerance -10"
          : nullptr;
  if (obstacle != nullptr) throw Error(fmt::format("--evict-measured: the model {}", obstacle));
}

// What the config alone forbids: said before any weight is read.
void check_options(const models::DecoderConfig& config, const TextModelArguments& arguments) {
  if (arguments.int8_cache && arguments.device == "cuda") {
    throw Error(
        "--int8-cache: is for the CPU, not for --device cuda; leave it out, or use "
        "--device cpu");
  }
  if (arguments.log_tolerance) check_tolerance(config, *arguments.log_tolerance);
  if (arguments.evict_measured) check_measured_eviction(config, arguments);
}

}  // namespace

TextModel open_text_model(const TextModelArguments& arguments) {
  const fs::path folder = models::model_folder(arguments.model);
  const models::DecoderConfig config = models::load_config(folder);
  check_options(config, arguments);
  check(arguments.memory, arguments.model, config);
  auto tokenizer = open_tokenizer(arguments, folder, config.vocab_size);
  if (tokenizer->vocab_size() > config.vocab_size) {
    throw Error(
        fmt::format("{}: the tokenizer has {} tokens, the model {}; name another with "
                    "--tokenizer",
                    folder.string(),
                    tokenizer->vocab_size(),
                    config.vocab_size));
  }
  // As weights of 8 bits, a cache of 8 bits makes auto the CPU.
  const at::Device device =
      reading_device(arguments.device, arguments.int8_cache ? "int8" : arguments.dtype);
  TextModel model{.decoder = models::open_model(folder, weight_format(arguments.dtype), device),
                  .tokenizer = std::move(tokenizer),
                  .folder = folder,
                  .name = fs::absolute(arguments.model).lexically_normal().filename().string(),
                  .stop = end_tokens(folder / "config.json", config.vocab_size)};
  if (model.name.empty()) {
    model.name = fs::absolute(arguments.model).lexically_normal().parent_path().filename().string();
  }
  add_unique(model.stop, end_tokens(folder / "generation_config.json", config.vocab_size));
  adopt_beginning(model);
  if (const auto eos = model.tokenizer->eos(); eos && model.stop.empty()) model.stop = {*eos};
  if (arguments.log_tolerance) model.decoder.set_log_pruning_tolerance(*arguments.log_tolerance);
  model.decoder.set_int8_cache(arguments.int8_cache);
  model.decoder.set_measured_eviction(arguments.evict_measured);
  apply(arguments.memory, model.decoder);
  if (!arguments.memory.folder.empty()) {
    model.memories = load_memories(arguments.memory, identity_of(folder), model.decoder);
  }
  return model;
}

}  // namespace reynard::cli
