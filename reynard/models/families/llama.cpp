// The Hugging Face Llama layout: RoPE, GQA, tied or untied head, no biases.

#include "reynard/models/families/layout.h"
#include "reynard/models/families/llama_layout.h"

namespace reynard::models {

namespace {

void read_keys(const JsonFields& fields, DecoderConfig& config) {
  fields.expect("attention_bias", false);
  read_llama_keys(fields, config);
}

std::string obstacle(const DecoderConfig& config) {
  return all_obstacles({{config.attention.qkv_bias, "attention.qkv_bias is on"},
                        {config.attention.window > 0, "attention.window is set"}},
                       llama_obstacle(config));
}

void write_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  write_llama_keys(config, json);
  json["attention_bias"] = false;
  json["mlp_bias"] = false;
}

}  // namespace

const Family kLlama = llama_family("llama", "LlamaForCausalLM", read_keys, write_keys, obstacle);

}  // namespace reynard::models
