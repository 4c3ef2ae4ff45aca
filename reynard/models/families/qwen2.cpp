// The Hugging Face Qwen2 layout: Llama with biases of q, k and v.

#include "reynard/models/families/layout.h"
#include "reynard/models/families/llama_layout.h"

namespace reynard::models {

namespace {

void read_keys(const JsonFields& fields, DecoderConfig& config) {
  read_llama_keys(fields, config);
  read_layer_windows(fields, config);
  config.attention.num_kv_heads =
      fields.of("attention.num_kv_heads").integer("num_key_value_heads");
  config.attention.qkv_bias = true;
}

std::string obstacle(const DecoderConfig& config) {
  return all_obstacles({{!config.attention.qkv_bias, "attention.qkv_bias is off"},
                        {config.head_dim() * config.attention.num_heads != config.hidden_size,
                         "attention.head_dim is not hidden_size / num_heads"}},
                       llama_obstacle(config));
}

void write_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  write_llama_keys(config, json);
  write_layer_windows(config, json);
}

}  // namespace

const Family kQwen2 = llama_family("qwen2", "Qwen2ForCausalLM", read_keys, write_keys, obstacle);

}  // namespace reynard::models
