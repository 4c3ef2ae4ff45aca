// The Hugging Face Mistral layout: Llama with a sliding window. A query sees itself and the
// sliding_window - 1 keys before it, as attention.window counts.

#include "reynard/models/families/layout.h"
#include "reynard/models/families/llama_layout.h"

namespace reynard::models {

namespace {

void read_keys(const JsonFields& fields, DecoderConfig& config) {
  read_llama_keys(fields, config);
  config.attention.num_kv_heads =
      fields.of("attention.num_kv_heads").integer("num_key_value_heads");
  config.attention.window = read_sliding_window(fields);
}

std::string obstacle(const DecoderConfig& config) {
  return all_obstacles({{config.attention.qkv_bias, "attention.qkv_bias is on"}},
                       llama_obstacle(config));
}

void write_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  write_llama_keys(config, json);
  const int64_t window = config.attention.window;
  json["sliding_window"] = window > 0 ? nlohmann::ordered_json(window) : nlohmann::ordered_json();
}

}  // namespace

const Family kMistral =
    llama_family("mistral", "MistralForCausalLM", read_keys, write_keys, obstacle);

}  // namespace reynard::models
