#pragma once
// What the two layouts of flash-linear-attention have in common.

#include "reynard/models/families/layout.h"

#include <string>

namespace reynard::models {

void read_fla_keys(const JsonFields& fields, DecoderConfig& config);
void write_fla_keys(const DecoderConfig& config, nlohmann::ordered_json& json);
// Why neither layout can be this model, whatever its gates, positions and norms of q and k.
std::string fla_obstacle(const DecoderConfig& config);

}  // namespace reynard::models
