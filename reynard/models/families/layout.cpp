#include "reynard/models/families/layout.h"

#include "reynard/config/config.h"
#include "reynard/config/json_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace reynard::models {

namespace {

// Keys with one name in every layout.
void read_shared_keys(const JsonFields& fields, DecoderConfig& config) {
  fields.expect("quantization_config", nullptr);
  fields.expect("is_causal", true);
  config.vocab_size = fields.of("vocab_size").integer("vocab_size");
  config.hidden_size = fields.of("hidden_size").integer("hidden_size");
  config.num_layers = fields.of("num_layers").integer("num_hidden_layers");
  config.intermediate_size = fields.of("intermediate_size").integer("intermediate_size", 0);
  config.initializer_range = fields.number("initializer_range", 0.02);
  config.tie_embeddings = fields.boolean("tie_word_embeddings", false);
  config.bos_token_id = fields.of("bos_token_id").token_id("bos_token_id");
  config.eos_token_id = fields.of("eos_token_id").token_id("eos_token_id");
}

nlohmann::json null_if_zero(int64_t value) {
  return value != 0 ? nlohmann::json(value) : nlohmann::json();
}

void write_shared_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = null_if_zero(config.intermediate_size);
  json["num_hidden_layers"] = config.num_layers;
  json["initializer_range"] = config.initializer_range;
  json["tie_word_embeddings"] = config.tie_embeddings;
  json["bos_token_id"] = config::or_null(config.bos_token_id);
  json["eos_token_id"] = config::or_null(config.eos_token_id);
  json["dtype"] = "float32";
}

// Whoever writes a key under "reynard" expects an effect.
void check_extension_keys(const JsonFields& extension, config::Problems& problems) {
  std::vector<std::string> known;
  for (const char* name : {"head_dim",
                           "forget_bias_init",
                           "log_pruning_tolerance",
                           "pruning_rule",
                           "qk_norm",
                           "temperature_init",
                           "memory",
                           "qkv_bias"}) {
    known.push_back(config::key(extension.path(), name));
  }
  std::vector<config::UnknownKey> unknown;
  for (const auto& [name, value] : extension.json().items()) {
    const std::string path = config::key(extension.path(), name);
    if (std::ranges::find(known, path) != known.end()) continue;
    unknown.push_back({path, extension.file()});
  }
  config::add_unknown_keys(unknown, known, problems);
}

// What a layout has no key for goes under "reynard", which other readers ignore; only values that
// differ from the defaults are written.
void read_extension(const JsonFields& extension, DecoderConfig& config) {
  AttentionMixerConfig& a = config.attention;
  a.head_dim = extension.of("attention.head_dim").integer("head_dim", a.head_dim);
  a.forget_bias_init =
      extension.of("attention.forget_bias_init").number("forget_bias_init", a.forget_bias_init);
  a.log_pruning_tolerance = extension.of("attention.log_pruning_tolerance")
                                .number("log_pruning_tolerance", a.log_pruning_tolerance);
  const std::string rule = extension.text("pruning_rule", config::name_of(a.pruning_rule));
  const auto known = config::value_named<attention::PruningRule>(rule);
  if (!known) extension.reject("pruning_rule", "tight or published");
  a.pruning_rule = *known;
  extension.expect("qk_norm", "temperature");
  if (!extension.at("qk_norm").is_null()) a.qk_norm = QKNorm::kTemperature;
  a.temperature_init =
      extension.of("attention.temperature_init").number("temperature_init", a.temperature_init);
  if (const std::optional<JsonFields> memory = extension.object("memory")) {
    config.mixer = "memory_attention";
    config.memory = config::from_json<MemoryConfig>(
        memory->json().dump(), fmt::format("{}: {}", memory->file(), memory->path()));
    const auto of_memory = nlohmann::json::parse(config::to_json(config.memory));
    for (const auto& [key, value] : of_memory.items()) {
      memory->of(config::key("memory", key)).at(key);  // the same names there
    }
    a.qkv_bias = extension.boolean("qkv_bias", a.qkv_bias);
  } else if (!extension.at("qkv_bias").is_null()) {
    extension.reject("qkv_bias", "reynard.memory beside it");
  }
}

void write_extension(const DecoderConfig& config, nlohmann::ordered_json& json) {
  const AttentionMixerConfig& a = config.attention;
  const AttentionMixerConfig defaults;
  nlohmann::ordered_json extension;
  if (config.head_dim() * a.num_heads != config.hidden_size && !json.contains("head_dim")) {
    extension["head_dim"] = config.head_dim();
  }
  if (a.forget_bias_init != defaults.forget_bias_init) {
    extension["forget_bias_init"] = a.forget_bias_init;
  }
  if (a.log_pruning_tolerance != 0 && !json.contains("log_pruning_tolerance")) {
    extension["log_pruning_tolerance"] = a.log_pruning_tolerance;
  }
  if (a.pruning_rule != defaults.pruning_rule) {
    extension["pruning_rule"] = config::name_of(a.pruning_rule);
  }
  if (a.qk_norm == QKNorm::kTemperature) extension["qk_norm"] = "temperature";
  if (a.temperature_init != defaults.temperature_init) {
    extension["temperature_init"] = a.temperature_init;
  }
  // The longllama layout has keys for a memory, though not for all of it.
  const MemoryConfig& memory = config.memory;
  const bool own = memory.top_k != 0 || memory.capacity != 0 || memory.log_scale_keys != 0;
  if (config.has_memory() && (own || !json.contains("mem_layers"))) {
    extension["memory"] = nlohmann::ordered_json::parse(config::to_json(memory));
    if (a.qkv_bias) extension["qkv_bias"] = true;
  }
  if (!extension.is_null()) json["reynard"] = extension;
}

}  // namespace

DecoderConfig read_config(const Family& family,
                          const nlohmann::json& json,
                          const std::string& file) {
  static const nlohmann::json kNone = nlohmann::json::object();
  config::Problems problems(file);
  const JsonFields fields(json, file, &problems);
  DecoderConfig config;
  read_shared_keys(fields, config);
  family.read_keys(fields, config);
  const JsonFields no_extension(kNone, file, &problems, "reynard");
  const JsonFields extension = fields.object("reynard").value_or(no_extension);
  check_extension_keys(extension, problems);
  read_extension(extension, config);
  config.check(problems, "");
  problems.throw_if_any();
  return config;
}

std::optional<int64_t> read_max_positions(const Family& family,
                                          const nlohmann::json& json,
                                          const std::string& file) {
  if (&family == &kLongLlama) return {};  // there it is the memory's window
  const JsonFields fields(json, file);
  const auto positions = fields.optional_integer("max_position_embeddings");
  if (positions && *positions < 1) fields.reject("max_position_embeddings", "at least 1");
  return positions;
}

nlohmann::ordered_json write_config(const Family& family,
                                    const DecoderConfig& config,
                                    std::optional<int64_t> max_positions) {
  nlohmann::ordered_json json;
  json["architectures"] = {family.architecture};
  json["model_type"] = family.model_type;
  write_shared_keys(config, json);
  json["max_position_embeddings"] = config::or_null(max_positions);
  family.write_keys(config, json);
  write_extension(config, json);
  return json;
}

std::string own_setting(const Family& family, const DecoderConfig& config) {
  const std::string ignored = family.ignored_key ? family.ignored_key(config) : "";
  if (!ignored.empty()) return ignored;
  const nlohmann::ordered_json json = write_config(family, config);
  const auto extension = json.find("reynard");
  if (extension == json.end()) return "";
  // The other keys there do not change what the model computes, or only within its tolerance.
  if (extension->contains("head_dim")) return "attention.head_dim is not hidden_size / num_heads";
  if (extension->contains("qk_norm")) return "attention.qk_norm is temperature";
  if (!extension->contains("memory")) return "";
  return json.contains("mem_layers")
             ? "memory.top_k, memory.capacity or memory.log_scale_keys is set"
             : "mixer is memory_attention";
}

void read_fox_keys(const JsonFields& fields, DecoderConfig& config) {
  config.hidden_ratio = fields.of("hidden_ratio").number("hidden_ratio", 4);
  config.hidden_act = fields.of("hidden_act").text("hidden_act", "swish");
  config.norm_eps = fields.of("norm_eps").number("norm_eps", 1e-6);
  fields.expect("elementwise_affine", true);
  config.attention.num_heads = fields.of("attention.num_heads").integer("num_heads");
  config.attention.num_kv_heads = fields.of("attention.num_kv_heads").integer("num_kv_heads", 0);
  config.attention.window = fields.of("attention.window").integer("window_size", 0);
}

void write_fox_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  const AttentionMixerConfig& a = config.attention;
  json["hidden_ratio"] = config.hidden_ratio;
  json["num_heads"] = a.num_heads;
  json["num_kv_heads"] =
      null_if_zero(config.num_kv_heads() == a.num_heads ? 0 : config.num_kv_heads());
  json["window_size"] = null_if_zero(a.window);
  json["hidden_act"] = config.hidden_act;
  json["elementwise_affine"] = true;
  json["norm_eps"] = config.norm_eps;
  json["use_cache"] = true;
  json["pad_token_id"] = nullptr;
}

std::string all_obstacles(std::initializer_list<Obstacle> obstacles, const std::string& others) {
  std::string all;
  const auto add = [&](std::string_view what) {
    if (!all.empty() && !what.empty()) all += ", ";
    all += what;
  };
  for (const Obstacle& obstacle : obstacles) {
    if (obstacle.holds) add(obstacle.what);
  }
  add(others);
  return all;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

std::vector<Piece> same_name(const std::string& name, int64_t rows) {
  return {{name, rows}};
}

bool is_gate_and_up(std::string_view name) {
  return name.ends_with("mlp.gate_proj.weight");
}

std::vector<Piece> gate_and_up(const std::string& name, int64_t rows) {
  return {{name, rows / 2}, {replaced(name, "gate_proj", "up_proj"), rows / 2}};
}

}  // namespace reynard::models
