// The layout of flash-linear-attention's ForgettingTransformerForCausalLM: FoX (LLaMA), optionally
// with QK-norm, output gate, GQA and biases. The MLP's gate and up matrices are separate tensors.

#include "reynard/models/families/family.h"
#include "reynard/models/families/fla_keys.h"
#include "reynard/models/families/layout.h"

namespace reynard::models {

namespace {

void read_keys(const JsonFields& fields, DecoderConfig& config) {
  read_fla_keys(fields, config);
  AttentionMixerConfig& a = config.attention;
  a.forget_gate = ForgetGate::kFull;
  if (fields.boolean("qk_norm", false)) a.qk_norm = QKNorm::kPerHead;
  if (fields.boolean("use_output_gate", false)) a.output_gate = OutputGate::kSigmoid;
}

std::string obstacle(const DecoderConfig& config) {
  const AttentionMixerConfig& a = config.attention;
  return all_obstacles({{a.forget_gate != ForgetGate::kFull, "attention.forget_gate is not full"},
                        {a.rope, "attention.rope is on"},
                        {a.qk_norm == QKNorm::kShared, "attention.qk_norm is shared"},
                        {a.qk_norm == QKNorm::kTemperature, "attention.qk_norm is temperature"},
                        {a.output_gate == OutputGate::kSilu, "attention.output_gate is silu"}},
                       fla_obstacle(config));
}

// FLA's layer hands the window to its cache alone: the attention it trains with sees every key.
std::string ignored_key(const DecoderConfig& config) {
  return all_obstacles({{config.attention.window > 0, "attention.window is set"}});
}

void write_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  write_fla_keys(config, json);
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
                                          .ignored_key = ignored_key,
                                          .pieces = pieces};

}  // namespace reynard::models
