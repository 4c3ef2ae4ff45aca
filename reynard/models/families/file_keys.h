#pragma once
// What a published config.json calls the keys of DecoderConfig, so that messages about values that
// cannot be name the key that stands in the file. Reading them is json_fields.h.

#include "reynard/config/fields.h"

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace reynard::models {

// Says to problems which values the file has and under which names.
void add_file_keys(const nlohmann::json& json, const std::string& file, config::Problems& problems);

}  // namespace reynard::models
