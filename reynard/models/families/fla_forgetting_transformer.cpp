// The layout of flash-linear-attention's ForgettingTransformerForCausalLM: FoX (LLaMA), optionally
// with QK-norm, output gate, GQA and biases. The MLP's gate and up matrices are separate tensors.

#include "reynard/models/families/family.h"
#include "reynard/models/families/layout.h"

#include <cmath>

namespace reynard::models {

namespace {

void read_keys(const JsonFields& fields, DecoderConfig& config) {
  read_fox_keys(fields, config);
  fields.expect("attnres_block_size", nullptr);
  AttentionMixerConfig& a = config.attention;
  a.forget_gate = ForgetGate::kFull;
  a.qkv_bias = fields.boolean("qkv_bias", false);
  if (fields.boolean("qk_norm", false)) a.qk_norm = QKNorm::kPerHead;
  if (fields.boolean("use_output_gate", false)) a.output_gate = OutputGate::kSigmoid;
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

void write_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  write_fox_keys(config, json);
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
}

std::vector<Piece> pieces(const std::string& name, int64_t rows) {
  if (is_gate_and_up(name)) return gate_and_up(name, rows);
  return {
      {replaced(
           replaced(name, "attn.fgate_proj.", "attn.f_proj."), "attn.ogate_proj.", "attn.g_proj."),
       rows}};
}

}  // namespace

const Family kFlaForgettingTransformer = {.model_type = "forgetting_transformer",
                                          .architecture = "ForgettingTransformerForCausalLM",
                                          .read_keys = read_keys,
                                          .write_keys = write_keys,
                                          .obstacle = obstacle,
                                          .pieces = pieces};

}  // namespace reynard::models
