#include "reynard/models/families/json_fields.h"

#include "reynard/config/json_file.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace reynard::models {

namespace {

// Whole numbers beyond int64 are read as unsigned or, those of more digits, as f64.
bool is_beyond_integers(const nlohmann::json& value) {
  return value.is_number_unsigned()
             ? value.get<uint64_t>() > uint64_t{INT64_MAX}
             : value.is_number_float() && !(std::abs(value.get<double>()) < 0x1p63);
}

}  // namespace

std::string shown_value(const nlohmann::json& value) {
  const std::string shown = config::ascii_json_text(value);
  return shown.size() > 80 ? shown.substr(0, 80) + "..." : shown;
}

const nlohmann::json& JsonFields::at(std::string_view key) const {
  static const nlohmann::json absent;
  const auto found = json_.find(std::string(key));
  const nlohmann::json& value = found == json_.end() ? absent : *found;
  if (!config_key_.empty() && problems_) {
    const bool is_given = !value.is_null();
    if (is_given || !problems_->has_name(config_key_)) {
      problems_->set_name(config_key_, config::key(path_, key));
    }
    if (is_given) problems_->set_value(config_key_, file_, shown_value(value));
  }
  return value;
}

JsonFields JsonFields::of(std::string_view config_key) const {
  JsonFields fields = *this;
  fields.config_key_ = config_key;
  return fields;
}

void JsonFields::reject(std::string_view key, std::string_view expected) const {
  throw Error(fmt::format("{}: {} = {}; expected {}",
                          file_,
                          config::key(path_, key),
                          json_.contains(key) ? shown_value(at(key)) : "(absent)",
                          expected));
}

std::optional<int64_t> JsonFields::optional_integer(std::string_view key) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return {};
  if (is_beyond_integers(value)) reject(key, "an integer between -2^63 and 2^63");
  if (!value.is_number_integer()) reject(key, "an integer");
  return value.get<int64_t>();
}

std::optional<double> JsonFields::optional_number(std::string_view key) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return {};
  if (!value.is_number()) reject(key, "a number");
  return value.get<double>();
}

int64_t JsonFields::integer(std::string_view key, std::optional<int64_t> fallback) const {
  const auto value = optional_integer(key);
  if (!value && !fallback) reject(key, "an integer");
  return value ? *value : *fallback;
}

double JsonFields::number(std::string_view key, std::optional<double> fallback) const {
  const auto value = optional_number(key);
  if (!value && !fallback) reject(key, "a number");
  return value ? *value : *fallback;
}

bool JsonFields::boolean(std::string_view key, bool fallback) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) reject(key, "true or false");
  return value.get<bool>();
}

std::string JsonFields::text(std::string_view key, std::string_view fallback) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return std::string(fallback);
  if (!value.is_string()) reject(key, "a string");
  return value.get<std::string>();
}

std::vector<std::string> JsonFields::texts(std::string_view key) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return {};
  if (!value.is_array()) reject(key, "a list of strings");
  std::vector<std::string> texts;
  for (const nlohmann::json& text : value) {
    if (!text.is_string()) reject(key, "a list of strings");
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

std::optional<int64_t> JsonFields::token_id(std::string_view key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_array()) return optional_integer(key);
  if (value.empty() || !value[0].is_number_integer()) reject(key, "a token id or a list of them");
  return value[0].get<int64_t>();
}

std::vector<int64_t> JsonFields::integers(std::string_view key) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return {};
  const bool fits = value.is_array() && std::ranges::all_of(value, [](const auto& element) {
                      return element.is_number_integer() && !is_beyond_integers(element);
                    });
  if (!fits) reject(key, "a list of integers");
  return value.get<std::vector<int64_t>>();
}

std::optional<JsonFields> JsonFields::object(std::string_view key) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return {};
  if (!value.is_object()) reject(key, "an object");
  return JsonFields(value, file_, problems_, config::key(path_, key));
}

void JsonFields::expect(std::string_view key, const nlohmann::json& only) const {
  const nlohmann::json& value = at(key);
  if (!value.is_null() && value != only)
    reject(key, fmt::format("{} (all we support)", only.dump()));
}

}  // namespace reynard::models
