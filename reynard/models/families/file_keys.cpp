#include "reynard/models/families/file_keys.h"

#include "reynard/models/families/json_fields.h"

#include <string_view>

namespace reynard::models {

namespace {

struct FileKey {
  std::string_view config, file;
};

// Of several rows for a key the first counts that the file has a value for, else the last.
constexpr FileKey kFileKeys[] = {
    {"vocab_size", "vocab_size"},
    {"hidden_size", "hidden_size"},
    {"num_layers", "num_hidden_layers"},
    {"intermediate_size", "intermediate_size"},
    {"hidden_ratio", "hidden_ratio"},
    {"hidden_act", "hidden_act"},
    {"bos_token_id", "bos_token_id"},
    {"eos_token_id", "eos_token_id"},
    {"norm_eps", "rms_norm_eps"},
    {"norm_eps", "norm_eps"},
    {"attention.qk_norm_eps", "rms_norm_eps"},
    {"attention.num_heads", "num_attention_heads"},
    {"attention.num_heads", "num_heads"},
    {"attention.num_kv_heads", "num_key_value_heads"},
    {"attention.num_kv_heads", "num_kv_heads"},
    {"attention.head_dim", "reynard.head_dim"},
    {"attention.head_dim", "head_dim"},
    {"attention.window", "sliding_window"},
    {"attention.window", "window_size"},
    {"attention.rope", "use_rope"},
    {"attention.rope", "head_dim"},  // layouts that always have it: what is wrong is the size
    {"attention.rope_base", "rope_scaling.rope_theta"},
    {"attention.rope_base", "rope_parameters.rope_theta"},
    {"attention.rope_base", "rope_theta"},
    {"attention.rope_base", "rope_base"},
    {"attention.rope_scaling.type", "rope_scaling.rope_type"},
    {"attention.rope_scaling.type", "rope_scaling.type"},
    {"attention.rope_scaling.type", "rope_parameters.type"},
    {"attention.rope_scaling.type", "rope_parameters.rope_type"},
    {"attention.rope_scaling.factor", "rope_scaling.factor"},
    {"attention.rope_scaling.factor", "rope_parameters.factor"},
    {"attention.rope_scaling.low_freq_factor", "rope_scaling.low_freq_factor"},
    {"attention.rope_scaling.low_freq_factor", "rope_parameters.low_freq_factor"},
    {"attention.rope_scaling.high_freq_factor", "rope_scaling.high_freq_factor"},
    {"attention.rope_scaling.high_freq_factor", "rope_parameters.high_freq_factor"},
    {"attention.rope_scaling.beta_fast", "rope_scaling.beta_fast"},
    {"attention.rope_scaling.beta_fast", "rope_parameters.beta_fast"},
    {"attention.rope_scaling.attention_factor", "rope_scaling.attention_factor"},
    {"attention.rope_scaling.attention_factor", "rope_parameters.attention_factor"},
    {"attention.forget_gate", "fgate_type"},
    {"attention.forget_bias_init", "reynard.forget_bias_init"},
    {"attention.decay_time_min", "decay_time_min"},
    {"attention.decay_time_max", "decay_time_max"},
    {"attention.temperature_init", "reynard.temperature_init"},
    {"attention.output_gate", "ogate_act"},
    {"attention.output_norm", "use_output_norm"},
    {"memory.window", "reynard.memory.window"},
    {"memory.window", "max_position_embeddings"},
    {"memory.last_context", "reynard.memory.last_context"},
    {"memory.last_context", "last_context_length"},
    {"memory.layers", "reynard.memory.layers"},
    {"memory.layers", "mem_layers"},
    {"memory.top_k", "reynard.memory.top_k"},
    {"memory.decay", "reynard.memory.decay"},
    {"memory.temperature_max", "reynard.memory.temperature_max"},
    {"memory.log_scale_keys", "reynard.memory.log_scale_keys"},
};

// The value of "rope_scaling.factor" and the like; null where there is none.
nlohmann::json value_of(const nlohmann::json& json, std::string_view key) {
  if (!json.is_object()) return nullptr;
  const std::size_t dot = key.find('.');
  const auto found = json.find(std::string(key.substr(0, dot)));
  if (found == json.end()) return nullptr;
  return dot == std::string_view::npos ? *found : value_of(*found, key.substr(dot + 1));
}

}  // namespace

void add_file_keys(const nlohmann::json& json,
                   const std::string& file,
                   config::Problems& problems) {
  std::string_view found;
  for (const auto& [config, key] : kFileKeys) {
    if (config == found) continue;
    problems.set_name(std::string(config), std::string(key));
    const nlohmann::json value = value_of(json, key);
    if (value.is_null()) continue;
    problems.set_value(std::string(config), file, shown_value(value));
    found = config;
  }
}

}  // namespace reynard::models
