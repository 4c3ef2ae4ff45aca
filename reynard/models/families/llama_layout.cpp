#include "reynard/models/families/llama_layout.h"

#include "reynard/models/families/layout.h"

namespace reynard::models {

namespace {

// Written where the layout wants a number; reynard itself has no limit on positions.
constexpr int64_t kPositions = 131072;

double read_rope_base(const JsonFields& fields) {
  fields.expect("rope_scaling", nullptr);
  const std::optional<JsonFields> rope = fields.object("rope_parameters");  // since transformers 5
  if (!rope) return fields.number("rope_theta", 10000);
  rope->expect("rope_type", "default");
  return rope->number("rope_theta", 10000);
}

}  // namespace

void read_llama_keys(const JsonFields& fields, DecoderConfig& config) {
  fields.expect("mlp_bias", false);
  fields.expect("hidden_act", "silu");
  config.intermediate_size = fields.integer("intermediate_size");  // required in these layouts
  config.norm_eps = fields.number("rms_norm_eps", 1e-6);
  AttentionMixerConfig& a = config.attention;
  a.num_heads = fields.integer("num_attention_heads");
  a.num_kv_heads = fields.integer("num_key_value_heads", 0);
  a.head_dim = fields.integer("head_dim", 0);
  a.forget_gate = ForgetGate::kNone;
  a.rope = true;
  a.rope_base = read_rope_base(fields);
}

void write_llama_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  json["intermediate_size"] = config.mlp_size();
  json["num_attention_heads"] = config.attention.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads();
  json["head_dim"] = config.head_dim();
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = kPositions;
  json["rms_norm_eps"] = config.norm_eps;
  json["rope_theta"] = config.attention.rope_base;
}

std::string llama_obstacle(const DecoderConfig& config) {
  DecoderConfig plain = config;
  plain.attention.qkv_bias = false;
  const std::string other = kTransformer.obstacle(plain);
  if (!other.empty()) return other;
  if (!config.attention.rope) return "attention.rope is off";
  if (config.hidden_act == "sigmoid") return "hidden_act is sigmoid";
  return "";
}

std::vector<Piece> llama_pieces(const std::string& name, int64_t rows) {
  if (name == "model.embeddings.weight") return {{"model.embed_tokens.weight", rows}};
  if (is_gate_and_up(name)) return gate_and_up(name, rows);
  std::string published = replaced(name, ".attn.", ".self_attn.");
  published = replaced(published, ".attn_norm.", ".input_layernorm.");
  return {{replaced(published, ".mlp_norm.", ".post_attention_layernorm."), rows}};
}

}  // namespace reynard::models
