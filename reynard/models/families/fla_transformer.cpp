// The layout of flash-linear-attention's TransformerForCausalLM: RoPE, GQA, window, biases of q, k
// and v, and RMSNorm of q and k with one weight for all heads (epsilon 1e-5, as FoX). The MLP's
// gate and up matrices are separate tensors.

#include "reynard/models/families/family.h"
#include "reynard/models/families/fla_keys.h"
#include "reynard/models/families/layout.h"

namespace reynard::models {

namespace {

void read_keys(const JsonFields& fields, DecoderConfig& config) {
  read_fla_keys(fields, config);
  AttentionMixerConfig& a = config.attention;
  a.forget_gate = ForgetGate::kNone;
  a.rope = true;
  a.rope_base = fields.of("attention.rope_base").number("rope_theta", 10000);
  if (fields.boolean("qk_norm", false)) a.qk_norm = QKNorm::kShared;
}

std::string obstacle(const DecoderConfig& config) {
  const AttentionMixerConfig& a = config.attention;
  return all_obstacles({{a.forget_gate != ForgetGate::kNone, "attention.forget_gate is not none"},
                        {!a.rope, "attention.rope is off"},
                        {a.qk_norm == QKNorm::kPerHead, "attention.qk_norm is per_head"},
                        {a.output_gate != OutputGate::kNone, "attention.output_gate is on"},
                        {config.head_dim() * a.num_heads != config.hidden_size,
                         "attention.head_dim is not hidden_size / num_heads"}},
                       fla_obstacle(config));
}

void write_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  write_fla_keys(config, json);
  json["rope_theta"] = config.attention.rope_base;
}

std::vector<Piece> pieces(const std::string& name, int64_t rows) {
  return is_gate_and_up(name) ? gate_and_up(name, rows) : same_name(name, rows);
}

}  // namespace

const Family kFlaTransformer = {.model_type = "transformer",
                                .architecture = "TransformerForCausalLM",
                                .read_keys = read_keys,
                                .write_keys = write_keys,
                                .obstacle = obstacle,
                                .pieces = pieces};

}  // namespace reynard::models
