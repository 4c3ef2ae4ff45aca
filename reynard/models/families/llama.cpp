// The Hugging Face Llama layout: RoPE of the default type, GQA, tied or untied head, no biases.

#include "reynard/models/families/family.h"
#include "reynard/models/families/layout.h"

namespace reynard::models {

namespace {

// Written where the layout wants a number; reynard itself has no limit on positions.
constexpr int64_t kPositions = 131072;

double read_rope_base(const JsonFields& fields, const std::string& file) {
  fields.expect("rope_scaling", nullptr);
  const nlohmann::json& parameters = fields.at("rope_parameters");  // since transformers 5
  if (parameters.is_null()) return fields.number("rope_theta", 10000);
  if (!parameters.is_object()) fields.reject("rope_parameters", "an object");
  const JsonFields rope(parameters, file);
  rope.expect("rope_type", "default");
  return rope.number("rope_theta", 10000);
}

DecoderConfig read_config(const nlohmann::json& json, const std::string& file) {
  const JsonFields fields(json, file);
  fields.expect("attention_bias", false);
  fields.expect("mlp_bias", false);
  fields.expect("hidden_act", "silu");
  DecoderConfig config;
  config.vocab_size = fields.integer("vocab_size");
  config.hidden_size = fields.integer("hidden_size");
  config.num_layers = fields.integer("num_hidden_layers");
  config.intermediate_size = fields.integer("intermediate_size");
  config.norm_eps = fields.number("rms_norm_eps", 1e-6);
  config.initializer_range = fields.number("initializer_range", 0.02);
  config.tie_embeddings = fields.boolean("tie_word_embeddings", false);
  config.bos_token_id = fields.token_id("bos_token_id");
  config.eos_token_id = fields.token_id("eos_token_id");
  AttentionMixerConfig& a = config.attention;
  a.num_heads = fields.integer("num_attention_heads");
  a.num_kv_heads = fields.integer("num_key_value_heads", 0);
  a.head_dim = fields.integer("head_dim", 0);
  a.forget_gate = ForgetGate::kNone;
  a.rope = true;
  a.rope_base = read_rope_base(fields, file);
  read_extension(json, file, config);
  check_config(config, file);
  return config;
}

std::string obstacle(const DecoderConfig& config) {
  const std::string other = kTransformer.obstacle(config);
  if (!other.empty()) return other;
  if (!config.attention.rope) return "attention.rope is off";
  if (config.attention.window > 0) return "attention.window is set";
  if (config.hidden_act == "sigmoid") return "hidden_act is sigmoid";
  return "";
}

nlohmann::ordered_json write_config(const DecoderConfig& config) {
  nlohmann::ordered_json json;
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = kLlama.model_type;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.mlp_size();
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.attention.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads();
  json["head_dim"] = config.head_dim();
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = kPositions;
  json["initializer_range"] = config.initializer_range;
  json["rms_norm_eps"] = config.norm_eps;
  json["rope_theta"] = config.attention.rope_base;
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
  json["bos_token_id"] = or_null(config.bos_token_id);
  json["eos_token_id"] = or_null(config.eos_token_id);
  json["tie_word_embeddings"] = config.tie_embeddings;
  json["dtype"] = "float32";
  return json;
}

std::vector<Piece> pieces(const std::string& name, int64_t rows) {
  if (name == "model.embeddings.weight") return {{"model.embed_tokens.weight", rows}};
  if (name.ends_with("mlp.gate_proj.weight")) {
    return {{name, rows / 2}, {replaced(name, "gate_proj", "up_proj"), rows / 2}};
  }
  std::string published = replaced(name, ".attn.", ".self_attn.");
  published = replaced(published, ".attn_norm.", ".input_layernorm.");
  return {{replaced(published, ".mlp_norm.", ".post_attention_layernorm."), rows}};
}

// Old versions saved the rotary table.
bool ignored(const std::string& published_name) {
  return published_name.ends_with("rotary_emb.inv_freq");
}

}  // namespace

const Family kLlama = {.model_type = "llama",
                       .read_config = read_config,
                       .obstacle = obstacle,
                       .write_config = write_config,
                       .pieces = pieces,
                       .ignored = ignored};

}  // namespace reynard::models
