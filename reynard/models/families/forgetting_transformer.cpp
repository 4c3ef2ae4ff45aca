// The layout of the FoX authors' ForgettingTransformerForCausalLM: FoX (LLaMA), FoX (Pro) and, with
// fgate_type "none", Transformer (Pro). Our parameter names are this layout's. Two keys are
// honoured that the authors' code rejects or ignores: num_kv_heads and window_size.

#include "reynard/config/json_file.h"
#include "reynard/models/families/family.h"
#include "reynard/models/families/layout.h"
#include "reynard/tensor/error.h"

#include <array>
#include <utility>

namespace reynard::models {

namespace {

constexpr std::array<std::pair<std::string_view, ForgetGate>, 4> kGateTypes = {{
    {"none", ForgetGate::kNone},
    {"full", ForgetGate::kFull},
    {"bias_only", ForgetGate::kDataIndependent},
    {"fixed", ForgetGate::kFixed},
}};

ForgetGate read_gate(const JsonFields& fields) {
  const std::string text = fields.of("attention.forget_gate").text("fgate_type", "full");
  for (const auto& [name, gate] : kGateTypes) {
    if (name == text) return gate;
  }
  fields.reject("fgate_type", "full, bias_only, fixed or none");
}

OutputGate read_output_gate(const JsonFields& fields) {
  const std::string act = fields.of("attention.output_gate").text("ogate_act", "sigmoid");
  if (act != "sigmoid" && act != "silu") fields.reject("ogate_act", "sigmoid or silu");
  if (!fields.boolean("use_output_gate", false)) return OutputGate::kNone;
  return act == "silu" ? OutputGate::kSilu : OutputGate::kSigmoid;
}

void read_keys(const JsonFields& fields, DecoderConfig& config) {
  read_fox_keys(fields, config);
  fields.expect("attention_bias", false);
  AttentionMixerConfig& a = config.attention;
  a.rope = fields.of("attention.rope").boolean("use_rope", false);
  a.rope_base = fields.of("attention.rope_base").number("rope_base", 500000);
  a.forget_gate = read_gate(fields);
  a.decay_time_min = fields.of("attention.decay_time_min").optional_number("decay_time_min");
  a.decay_time_max = fields.of("attention.decay_time_max").optional_number("decay_time_max");
  a.output_gate = read_output_gate(fields);
  a.output_norm = fields.of("attention.output_norm").boolean("use_output_norm", false);
  if (fields.boolean("qk_norm", false)) {
    a.qk_norm = fields.boolean("qk_norm_share_param_across_head", false) ? QKNorm::kShared
                                                                         : QKNorm::kPerHead;
  }
  a.key_shift = fields.boolean("use_k_shift", false);
  a.value_shift = fields.boolean("use_v_shift", false);
  a.log_pruning_tolerance = fields.number("log_pruning_tolerance", 0);
  if (a.log_pruning_tolerance > 0) fields.reject("log_pruning_tolerance", "null or <= 0");
}

std::string obstacle(const DecoderConfig& config) {
  // A memory, with its temperature and biases, is under "reynard" (layout.cpp).
  const AttentionMixerConfig& a = config.attention;
  return all_obstacles(
      {{config.mixer != "attention" && !config.has_memory(), "mixer is not attention"},
       {a.qkv_bias && !config.has_memory(), "attention.qkv_bias is on"},
       {a.rope && a.rope_scaling, "attention.rope_scaling is set"},
       {a.qk_norm != QKNorm::kNone && a.qk_norm_eps != 1e-5, "attention.qk_norm_eps is not 1e-5"}});
}

std::string ignored_key(const DecoderConfig& config) {
  return all_obstacles({{config.num_kv_heads() != config.attention.num_heads,
                         "attention.num_kv_heads is not num_heads"},
                        {config.attention.window > 0, "attention.window is set"}});
}

void write_keys(const DecoderConfig& config, nlohmann::ordered_json& json) {
  const AttentionMixerConfig& a = config.attention;
  write_fox_keys(config, json);
  json["attention_bias"] = false;
  json["fuse_norm"] = true;
  json["fuse_cross_entropy"] = true;
  json["rope_base"] = a.rope_base;
  json["use_rope"] = a.rope;
  json["use_output_gate"] = a.output_gate != OutputGate::kNone;
  json["ogate_act"] = a.output_gate == OutputGate::kSilu ? "silu" : "sigmoid";
  for (const auto& [name, gate] : kGateTypes) {
    if (gate == a.forget_gate) json["fgate_type"] = name;
  }
  // The layout has decay times for data-independent gates only; those of a full gate have done
  // their work in the initial bias, which is among the weights.
  const bool has_times = a.decay_time_min && a.forget_gate != ForgetGate::kFull;
  json["fgate_bias_init"] = has_times;
  json["decay_time_min"] = config::or_null(has_times ? a.decay_time_min : std::nullopt);
  json["decay_time_max"] = config::or_null(has_times ? a.decay_time_max : std::nullopt);
  json["use_output_norm"] = a.output_norm;
  json["qk_norm"] = a.qk_norm == QKNorm::kPerHead || a.qk_norm == QKNorm::kShared;
  json["qk_norm_share_param_across_head"] = a.qk_norm == QKNorm::kShared;
  json["use_k_shift"] = a.key_shift;
  json["use_v_shift"] = a.value_shift;
  json["log_pruning_tolerance"] = a.log_pruning_tolerance != 0
                                      ? nlohmann::ordered_json(a.log_pruning_tolerance)
                                      : nlohmann::ordered_json();
}

}  // namespace

const Family kForgettingTransformer = {.model_type = "forgetting_transformer-project_fox",
                                       .architecture = "ForgettingTransformerForCausalLM",
                                       .read_keys = read_keys,
                                       .write_keys = write_keys,
                                       .obstacle = obstacle,
                                       .ignored_key = ignored_key,
                                       .pieces = same_name};

}  // namespace reynard::models
