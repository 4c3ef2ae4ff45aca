// The layout of the FoX authors' TransformerForCausalLM: Transformer (LLaMA) and its sliding-window
// form. Tensor names are those of their FoX layout without gates, norms and shifts.

#include "reynard/models/families/family.h"
#include "reynard/models/families/layout.h"

namespace reynard::models {

namespace {

DecoderConfig read_config(const nlohmann::json& json, const std::string& file) {
  const JsonFields fields(json, file);
  DecoderConfig config;
  read_common(fields, config);
  fields.expect("attention_bias", false);
  config.attention.forget_gate = ForgetGate::kNone;
  config.attention.rope = fields.boolean("use_rope", true);
  config.attention.rope_base = fields.number("rope_base", 500000);
  read_extension(json, file, config);
  check_config(config, file);
  return config;
}

std::string obstacle(const DecoderConfig& config) {
  const AttentionMixerConfig& a = config.attention;
  if (config.mixer != "attention") return "mixer is not attention";
  if (a.qkv_bias) return "attention.qkv_bias is on";
  if (a.forget_gate != ForgetGate::kNone) return "attention.forget_gate is not none";
  if (a.qk_norm != QKNorm::kNone) return "attention.qk_norm is on";
  if (a.output_gate != OutputGate::kNone) return "attention.output_gate is on";
  if (a.output_norm) return "attention.output_norm is on";
  if (a.key_shift || a.value_shift) return "a token shift is on";
  return "";
}

nlohmann::ordered_json write_config(const DecoderConfig& config) {
  nlohmann::ordered_json json;
  json["architectures"] = {"TransformerForCausalLM"};
  json["model_type"] = kTransformer.model_type;
  write_common(config, json);
  json["attention_bias"] = false;
  json["fuse_norm"] = true;
  json["fuse_cross_entropy"] = true;
  json["rope_base"] = config.attention.rope_base;
  json["use_rope"] = config.attention.rope;
  write_extension(config, json);
  return json;
}

std::vector<Piece> pieces(const std::string& name, int64_t rows) {
  return {{name, rows}};
}

}  // namespace

const Family kTransformer = {.model_type = "transformer-project_fox",
                             .read_config = read_config,
                             .obstacle = obstacle,
                             .write_config = write_config,
                             .pieces = pieces,
                             .ignored = nothing_ignored};

}  // namespace reynard::models
