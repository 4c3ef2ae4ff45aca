#include "reynard/protocol/request_fields.h"

#include "reynard/config/json_file.h"
#include "reynard/protocol/api_error.h"

#include <fmt/format.h>

#include <cmath>

namespace reynard::protocol {

namespace {

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxShown = 60;  // characters of a bad value in a message

std::string shown(const nlohmann::json& value) {
  std::string text = config::ascii_json_text(value);
  return text.size() > kMaxShown ? text.substr(0, kMaxShown) + "..." : text;
}

// Of an integer, which some clients write as a float: 3.0. Nothing: it is none of 64 bits.
std::optional<int64_t> integer_of(const nlohmann::json& value) {
  constexpr double kEnd = 0x1p63;
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    const bool is_whole = std::trunc(number) == number && number >= -kEnd && number < kEnd;
    return is_whole ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
  }
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
  return fits ? std::optional(value.get<int64_t>()) : std::nullopt;
}

[[noreturn]] void reject_value(const std::string& name,
                               const nlohmann::json& value,
                               std::string_view expected) {
  throw ApiError(400,
                 value.is_null()
                     ? fmt::format("{} is missing; expected {}", name, expected)
                     : fmt::format("{} = {}; expected {}", name, shown(value), expected),
                 name);
}

}  // namespace

nlohmann::json parse_body(std::string_view body) {
  if (config::is_nested_deeper(body, kMaxDepth)) {
    throw ApiError(400, fmt::format("the body is nested deeper than {}", kMaxDepth));
  }
  nlohmann::json json = config::parse_json_text(body, kMaxDepth);
  if (json.is_discarded()) {
    throw ApiError(
        400, fmt::format("the body is not valid JSON: {}", config::json_mistake(body, kMaxDepth)));
  }
  if (!json.is_object()) throw ApiError(400, "the body is not a JSON object");
  return json;
}

const nlohmann::json& RequestFields::at(std::string_view key) const {
  static const nlohmann::json absent;
  const auto found = object_.find(key);
  return found == object_.end() ? absent : *found;
}

void RequestFields::reject(std::string_view key, std::string_view expected) const {
  reject_value(prefix_ + std::string(key), at(key), expected);
}

std::optional<int64_t> RequestFields::integer(std::string_view key,
                                              int64_t low,
                                              int64_t high) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return {};
  const std::optional<int64_t> integer = integer_of(value);
  if (!integer || *integer < low || *integer > high) {
    reject(key, fmt::format("an integer from {} to {}", low, high));
  }
  return integer;
}

std::optional<double> RequestFields::number(std::string_view key, double low, double high) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return {};
  if (!value.is_number() || !(value.get<double>() >= low && value.get<double>() <= high)) {
    reject(key, fmt::format("a number from {} to {}", low, high));
  }
  return value.get<double>();
}

bool RequestFields::boolean(std::string_view key, bool fallback) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) reject(key, "true or false");
  return value.get<bool>();
}

std::optional<std::string> RequestFields::text(std::string_view key) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return {};
  if (!value.is_string()) reject(key, "a string");
  return value.get<std::string>();
}

std::vector<std::string> RequestFields::texts(std::string_view key, std::size_t most) const {
  const nlohmann::json& value = at(key);
  if (value.is_null()) return {};
  if (value.is_string()) return {value.get<std::string>()};
  const std::string expected = fmt::format("a string or a list of at most {} strings", most);
  if (!value.is_array() || value.size() > most) reject(key, expected);
  std::vector<std::string> texts;
  for (const auto& item : value) {
    if (!item.is_string()) reject(key, expected);
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::vector<int64_t> token_ids(const nlohmann::json& list, const std::string& field) {
  std::vector<int64_t> ids;
  if (!list.is_array()) reject_value(field, list, "a list of token ids");
  ids.reserve(list.size());
  for (const auto& item : list) {
    const std::optional<int64_t> id = integer_of(item);
    if (!id || *id < 0) {
      throw ApiError(
          400,
          fmt::format("{} holds {}; expected token ids, integers from 0 on", field, shown(item)),
          field);
    }
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace reynard::protocol
