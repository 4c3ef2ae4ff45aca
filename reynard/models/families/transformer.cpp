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
  config.attention.rope = fields.boolean("use_rope", true);
  config.attention.rope_base = fields.number("rope_base", 500000);
}

std::string obstacle(const DecoderConfig& config) {
  const AttentionMixerConfig& a = config.attention;
  if (config.mixer != "attention") return "mixer is not attention";
  if (a.qkv_bias) return "attention.qkv_bias is on";
  if (a.rope && a.rope_scaling) return "attention.rope_scaling is set";
  if (a.forget_gate != ForgetGate::kNone) return "attention.forget_gate is not none";
  if (a.qk_norm != QKNorm::kNone) return "attention.qk_norm is on";
  if (a.output_gate != OutputGate::kNone) return "attention.output_gate is on";
  if (a.output_norm) return "attention.output_norm is on";
  if (a.key_shift || a.value_shift) return "a token shift is on";
  return "";
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
