// The layout of flash-linear-attention's ForgettingTransformerForCausalLM: FoX (LLaMA), optionally
// with QK-norm, output gate, GQA and biases. The MLP's gate and up matrices are separate tensors.

#include "reynard/models/families/family.h"
#include "reynard/models/families/layout.h"

#include <cmath>

namespace reynard::models {

namespace {

DecoderConfig read_config(const nlohmann::json& json, const std::string& file) {
  const JsonFields fields(json, file);
  DecoderConfig config;
  read_common(fields, config);
  fields.expect("attnres_block_size", nullptr);
  AttentionMixerConfig& a = config.attention;
  a.forget_gate = ForgetGate::kFull;
  a.qkv_bias = fields.boolean("qkv_bias", false);
  if (fields.boolean("qk_norm", false)) a.qk_norm = QKNorm::kPerHead;
  if (fields.boolean("use_output_gate", false)) a.output_gate = OutputGate::kSigmoid;
  read_extension(json, file, config);
  check_config(config, file);
  return config;
}

std::string obstacle(const DecoderConfig& config) {
  const AttentionMixerConfig& a = config.attention;
  if (config.mixer != "attention") return "mixer is not attention";
  if (a.forget_gate != ForgetGate::kFull) return "attention.forget_gate is not full";
  if (a.rope) return "attention.rope is on";
  if (a.qk_norm == QKNorm::kShared) return "attention.qk_norm is shared";
  if (a.output_gate == OutputGate::kSilu) return "attention.output_gate is silu";
  if (a.output_norm) return "attention.output_norm is on";
  if (a.key_shift || a.value_shift) return "a token shift is on";
  return "";
}

nlohmann::ordered_json write_config(const DecoderConfig& config) {
  nlohmann::ordered_json json;
  json["architectures"] = {"ForgettingTransformerForCausalLM"};
  json["model_type"] = kFlaForgettingTransformer.model_type;
  write_common(config, json);
  // The layout's hidden_ratio is an integer.
  if (config.hidden_ratio != std::floor(config.hidden_ratio)) {
    json["hidden_ratio"] = 4;
    json["intermediate_size"] = config.mlp_size();
  } else {
    json["hidden_ratio"] = static_cast<int64_t>(config.hidden_ratio);
  }
  json["qkv_bias"] = config.attention.qkv_bias;
  json["qk_norm"] = config.attention.qk_norm != QKNorm::kNone;
  json["use_output_gate"] = config.attention.output_gate != OutputGate::kNone;
  write_extension(config, json);
  return json;
}

std::vector<Piece> pieces(const std::string& name, int64_t rows) {
  if (name.ends_with("mlp.gate_proj.weight")) {
    return {{name, rows / 2}, {replaced(name, "gate_proj", "up_proj"), rows / 2}};
  }
  return {
      {replaced(
           replaced(name, "attn.fgate_proj.", "attn.f_proj."), "attn.ogate_proj.", "attn.g_proj."),
       rows}};
}

}  // namespace

const Family kFlaForgettingTransformer = {.model_type = "forgetting_transformer",
                                          .read_config = read_config,
                                          .obstacle = obstacle,
                                          .write_config = write_config,
                                          .pieces = pieces,
                                          .ignored = nothing_ignored};

}  // namespace reynard::models
