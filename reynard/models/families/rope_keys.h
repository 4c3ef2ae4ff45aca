#pragma once
// RoPE in the config.json of the Llama family: rope_theta and rope_scaling, or rope_parameters that
// holds both (since transformers 5). Of both objects rope_scaling counts, unless it is empty.

#include "reynard/models/decoder_config.h"
#include "reynard/models/families/json_fields.h"

#include <nlohmann/json.hpp>

namespace reynard::models {

// Throws reynard::Error for a rope_type that is none of default, linear, dynamic, yarn and llama3,
// and for heads that are turned in part.
void read_rope_keys(const JsonFields& fields, AttentionMixerConfig& config);
void write_rope_keys(const AttentionMixerConfig& config, nlohmann::ordered_json& json);

}  // namespace reynard::models
