// The layout of the FoX authors' TransformerForCausalLM: Transformer (LLaMA) and its sliding-window
// form. Tensor names are those of their FoX layout without gates, norms and shifts.

#include "reynard/models/families/family.h"
#include "reynard/models/families/layout.h"

namespace reynard::models {

namespace {

void read_keys(const JsonFields& fields, DecoderConfig& config) {
  read_fox_keys(fields, config);
  fields.expect("attention_bias", false);
  config.attention.forget_gate = ForgetGate::kNone;
  config.attention.rope = fields.of("attention.rope").boolean("use_rope", true);
  config.attention.rope_base = fields.of("attention.rope_base").number("rope_base", 500000);
}

std::string obstacle(const DecoderConfig& config) {
  const AttentionMixerConfig& a = config.attention;
  return all_obstacles({{config.mixer != "attention", "mixer is not attention"},
                        {a.qkv_bias, "attention.qkv_bias is on"},
                        {a.rope && a.rope_scaling, "attention.rope_scaling is set"},
                        {a.forget_gate != ForgetGate::kNone, "attention.forget_gate is not none"},
                        {a.qk_norm != QKNorm::kNone, "attention.qk_norm is on"},
                        {a.output_gate != OutputGate::kNone, "attention.output_gate is on"},
                        {a.output_norm, "attention.output_norm is on"},
                        {a.key_shift, "attention.key_shift is on"},
                        {a.value_shift, "attention.value_shift is on"}});
}

void write_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  write_fox_keys(config, json);
  json["attention_bias"] = false;
  json["fuse_norm"] = true;
  json["fuse_cross_entropy"] = true;
  json["rope_base"] = config.attention.rope_base;
  json["use_rope"] = config.attention.rope;
}

}  // namespace

const Family kTransformer = {.model_type = "transformer-project_fox",
                             .architecture = "TransformerForCausalLM",
                             .read_keys = read_keys,
                             .write_keys = write_keys,
                             .obstacle = obstacle,
                             .pieces = same_name};

}  // namespace reynard::models
