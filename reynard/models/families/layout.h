#pragma once
// What several published layouts have in common.

#include "reynard/models/decoder_config.h"
#include "reynard/models/families/family.h"
#include "reynard/models/families/json_fields.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace reynard::models {

// Keys that the FoX authors' and FLA's configs share: sizes, norms, initialisation, token ids.
void read_common(const JsonFields& fields, DecoderConfig& config);
void write_common(const DecoderConfig& config, nlohmann::ordered_json& json);

// What the layouts have no key for goes under "reynard", which other readers ignore; only values
// that differ from the defaults are written.
void read_extension(const nlohmann::json& json, const std::string& file, DecoderConfig& config);
void write_extension(const DecoderConfig& config, nlohmann::ordered_json& json);

// Lets config.check() speak as an error of this file.
void check_config(const DecoderConfig& config, const std::string& file);

// A number that has one, as JSON null otherwise.
template <class Value>
nlohmann::ordered_json or_null(const std::optional<Value>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}
inline nlohmann::ordered_json or_null(int64_t value) {
  return value != 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

// text with `from` replaced by `to` at its first place, if it is there.
std::string replaced(std::string text, std::string_view from, std::string_view to);

bool nothing_ignored(const std::string& published_name);

}  // namespace reynard::models
