#include "reynard/models/families/llama_layout.h"

#include "reynard/models/families/layout.h"
#include "reynard/models/families/rope_keys.h"

#include <algorithm>

namespace reynard::models {

void read_llama_keys(const JsonFields& fields, DecoderConfig& config) {
  fields.expect("mlp_bias", false);
  fields.of("hidden_act").expect("hidden_act", "silu");
  // Required in these layouts.
  config.intermediate_size = fields.of("intermediate_size").integer("intermediate_size");
  config.norm_eps = fields.of("norm_eps").number("rms_norm_eps", 1e-6);
  AttentionMixerConfig& a = config.attention;
  a.num_heads = fields.of("attention.num_heads").integer("num_attention_heads");
  a.num_kv_heads = fields.of("attention.num_kv_heads").integer("num_key_value_heads", 0);
  a.head_dim = fields.of("attention.head_dim").integer("head_dim", 0);
  a.forget_gate = ForgetGate::kNone;
  read_rope_keys(fields, a);
}

void write_llama_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  json["intermediate_size"] = config.mlp_size();
  json["num_attention_heads"] = config.attention.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads();
  json["head_dim"] = config.head_dim();
  json["hidden_act"] = "silu";
  json["rms_norm_eps"] = config.norm_eps;
  write_rope_keys(config.attention, json);
}

int64_t read_sliding_window(const JsonFields& fields) {
  constexpr const char* kKey = "sliding_window";
  return fields.of("attention.window").integer(kKey, fields.json().contains(kKey) ? 0 : 4096);
}

void read_layer_windows(const JsonFields& fields, DecoderConfig& config) {
  const std::vector<std::string> types = fields.texts("layer_types");
  const auto windowed = std::ranges::count(types, "sliding_attention");
  const auto full = std::ranges::count(types, "full_attention");
  if (!types.empty() &&
      (windowed + full != static_cast<int64_t>(types.size()) || (windowed > 0 && full > 0))) {
    fields.reject("layer_types", "sliding_attention or full_attention, the same for all layers");
  }
  bool on = fields.boolean("use_sliding_window", false);
  if (on && types.empty()) {
    const int64_t num_full = fields.integer("max_window_layers", 28);
    if (num_full > 0 && num_full < config.num_layers) {
      fields.reject("max_window_layers", "0 or num_hidden_layers: a window of all layers or none");
    }
    on = num_full <= 0;
  } else {
    on = on && windowed > 0;
  }
  if (on) config.attention.window = read_sliding_window(fields);
}

void write_layer_windows(const DecoderConfig& config, nlohmann::ordered_json& json) {
  const int64_t window = config.attention.window;
  json["use_sliding_window"] = window > 0;
  if (window > 0) json["sliding_window"] = window;
  // The number of layers, from the first, that have none.
  json["max_window_layers"] = window > 0 ? 0 : config.num_layers;
}

std::string llama_obstacle(const DecoderConfig& config) {
  DecoderConfig plain = config;
  plain.attention.qkv_bias = false;
  plain.attention.rope_scaling = {};
  return all_obstacles({{!config.attention.rope, "attention.rope is off"},
                        {config.hidden_act == "sigmoid", "hidden_act is sigmoid"}},
                       kTransformer.obstacle(plain));
}

std::vector<Piece> llama_pieces(const std::string& name, int64_t rows) {
  if (name == "model.embeddings.weight") return {{"model.embed_tokens.weight", rows}};
  if (is_gate_and_up(name)) return gate_and_up(name, rows);
  std::string published = replaced(name, ".attn.", ".self_attn.");
  published = replaced(published, ".attn_norm.", ".input_layernorm.");
  return {{replaced(published, ".mlp_norm.", ".post_attention_layernorm."), rows}};
}

}  // namespace reynard::models
