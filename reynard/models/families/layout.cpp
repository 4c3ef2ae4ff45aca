#include "reynard/models/families/layout.h"

#include "reynard/config/fields.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

namespace reynard::models {

void read_common(const JsonFields& fields, DecoderConfig& config) {
  config.vocab_size = fields.integer("vocab_size");
  config.hidden_size = fields.integer("hidden_size");
  config.num_layers = fields.integer("num_hidden_layers");
  config.intermediate_size = fields.integer("intermediate_size", 0);
  config.hidden_ratio = fields.number("hidden_ratio", 4);
  config.hidden_act = fields.text("hidden_act", "swish");
  config.norm_eps = fields.number("norm_eps", 1e-6);
  config.initializer_range = fields.number("initializer_range", 0.02);
  config.tie_embeddings = fields.boolean("tie_word_embeddings", false);
  config.bos_token_id = fields.token_id("bos_token_id");
  config.eos_token_id = fields.token_id("eos_token_id");
  config.attention.num_heads = fields.integer("num_heads");
  config.attention.num_kv_heads = fields.integer("num_kv_heads", 0);
  config.attention.window = fields.integer("window_size", 0);
}

void write_common(const DecoderConfig& config, nlohmann::ordered_json& json) {
  const AttentionMixerConfig& a = config.attention;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["hidden_ratio"] = config.hidden_ratio;
  json["intermediate_size"] = or_null(config.intermediate_size);
  json["num_hidden_layers"] = config.num_layers;
  json["num_heads"] = a.num_heads;
  json["num_kv_heads"] = or_null(config.num_kv_heads() == a.num_heads ? 0 : config.num_kv_heads());
  json["window_size"] = or_null(a.window);
  json["max_position_embeddings"] = nullptr;
  json["hidden_act"] = config.hidden_act;
  json["initializer_range"] = config.initializer_range;
  json["elementwise_affine"] = true;
  json["norm_eps"] = config.norm_eps;
  json["use_cache"] = true;
  json["pad_token_id"] = nullptr;
  json["bos_token_id"] = or_null(config.bos_token_id);
  json["eos_token_id"] = or_null(config.eos_token_id);
  json["tie_word_embeddings"] = config.tie_embeddings;
  json["dtype"] = "float32";
}

void read_extension(const nlohmann::json& json, const std::string& file, DecoderConfig& config) {
  const auto found = json.find("reynard");
  if (found == json.end()) return;
  if (!found->is_object()) throw Error(fmt::format("{}: reynard must be an object", file));
  AttentionMixerConfig& a = config.attention;
  const JsonFields fields(*found, file);
  a.head_dim = fields.integer("head_dim", a.head_dim);
  a.forget_bias_init = fields.number("forget_bias_init", a.forget_bias_init);
  a.log_pruning_tolerance = fields.number("log_pruning_tolerance", a.log_pruning_tolerance);
  const std::string rule = fields.text("pruning_rule", attention::to_string(a.pruning_rule));
  if (rule != "tight" && rule != "published") fields.reject("pruning_rule", "tight or published");
  a.pruning_rule = attention::pruning_rule_from_string(rule);
}

void write_extension(const DecoderConfig& config, nlohmann::ordered_json& json) {
  const AttentionMixerConfig& a = config.attention;
  const AttentionMixerConfig defaults;
  nlohmann::ordered_json extension;
  if (config.head_dim() * a.num_heads != config.hidden_size) {
    extension["head_dim"] = config.head_dim();
  }
  if (a.forget_bias_init != defaults.forget_bias_init) {
    extension["forget_bias_init"] = a.forget_bias_init;
  }
  if (a.log_pruning_tolerance != 0 && !json.contains("log_pruning_tolerance")) {
    extension["log_pruning_tolerance"] = a.log_pruning_tolerance;
  }
  if (a.pruning_rule != defaults.pruning_rule) {
    extension["pruning_rule"] = attention::to_string(a.pruning_rule);
  }
  if (!extension.is_null()) json["reynard"] = extension;
}

void check_config(const DecoderConfig& config, const std::string& file) {
  config::Problems problems(file);
  config.check(problems, "");
  problems.throw_if_any();
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

bool nothing_ignored(const std::string& /*published_name*/) {
  return false;
}

}  // namespace reynard::models
