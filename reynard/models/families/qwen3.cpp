// The Hugging Face Qwen3 layout: Llama with RMSNorm of q and k, one weight for all heads and the
// epsilon of the other norms.

#include "reynard/models/families/layout.h"
#include "reynard/models/families/llama_layout.h"

namespace reynard::models {

namespace {

void read_keys(const JsonFields& fields, DecoderConfig& config) {
  fields.expect("attention_bias", false);
  read_llama_keys(fields, config);
  read_layer_windows(fields, config);
  config.attention.num_kv_heads =
      fields.of("attention.num_kv_heads").integer("num_key_value_heads");
  config.attention.head_dim = fields.of("attention.head_dim").integer("head_dim", 128);
  config.attention.qk_norm = QKNorm::kShared;
  config.attention.qk_norm_eps =
      fields.of("attention.qk_norm_eps").number("rms_norm_eps", config.norm_eps);
}

std::string obstacle(const DecoderConfig& config) {
  const AttentionMixerConfig& a = config.attention;
  DecoderConfig plain = config;
  plain.attention.qk_norm = QKNorm::kNone;
  const bool shared = a.qk_norm == QKNorm::kShared;
  return all_obstacles(
      {{a.qkv_bias, "attention.qkv_bias is on"},
       {!shared, "attention.qk_norm is not shared"},
       {shared && a.qk_norm_eps != config.norm_eps, "attention.qk_norm_eps is not norm_eps"}},
      llama_obstacle(plain));
}

void write_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  write_llama_keys(config, json);
  write_layer_windows(config, json);
  json["attention_bias"] = false;
}

}  // namespace

const Family kQwen3 = llama_family("qwen3", "Qwen3ForCausalLM", read_keys, write_keys, obstacle);

}  // namespace reynard::models
