#include "reynard/models/families/fla_keys.h"

#include <cmath>

namespace reynard::models {

void read_fla_keys(const JsonFields& fields, DecoderConfig& config) {
  read_fox_keys(fields, config);
  fields.expect("attnres_block_size", nullptr);
  fields.of("hidden_act").expect("hidden_act", "swish");
  config.attention.qkv_bias = fields.boolean("qkv_bias", false);
}

void write_fla_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  write_fox_keys(config, json);
  json["hidden_act"] = "swish";
  // The layout's hidden_ratio is an integer.
  if (config.hidden_ratio != std::floor(config.hidden_ratio)) {
    json["hidden_ratio"] = 4;
    json["intermediate_size"] = config.mlp_size();
  } else {
    json["hidden_ratio"] = static_cast<int64_t>(config.hidden_ratio);
  }
  json["qkv_bias"] = config.attention.qkv_bias;
  json["qk_norm"] = config.attention.qk_norm != QKNorm::kNone;
}

std::string fla_obstacle(const DecoderConfig& config) {
  const AttentionMixerConfig& a = config.attention;
  return all_obstacles(
      {{config.mixer != "attention", "mixer is not attention"},
       {config.hidden_act == "sigmoid", "hidden_act is sigmoid"},
       {a.rope && a.rope_scaling, "attention.rope_scaling is set"},
       {a.qk_norm != QKNorm::kNone && a.qk_norm_eps != 1e-5, "attention.qk_norm_eps is not 1e-5"},
       {a.output_norm, "attention.output_norm is on"},
       {a.key_shift, "attention.key_shift is on"},
       {a.value_shift, "attention.value_shift is on"}});
}

}  // namespace reynard::models
