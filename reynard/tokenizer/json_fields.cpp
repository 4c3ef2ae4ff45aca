#include "reynard/tokenizer/json_fields.h"

#include "reynard/config/json_file.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <utility>

namespace reynard::tokenizer {

using nlohmann::json;

namespace {

std::string short_text(const json& value) {
  const std::string text = config::ascii_json_text(value);
  return text.size() > 60 ? text.substr(0, 60) + "..." : text;
}

}  // namespace

JsonObject::JsonObject(const json& value, std::string where)
    : value_(value), where_(std::move(where)) {
  if (!value_.is_object()) fail("expected a JSON object");
}

void JsonObject::fail(std::string_view message) const {
  throw Error(fmt::format("{}: {}", where_, message));
}

bool JsonObject::has(std::string_view key) const {
  const auto found = value_.find(key);
  return found != value_.end() && !found->is_null();
}

const json& JsonObject::value(std::string_view key) const {
  const auto found = value_.find(key);
  if (found == value_.end()) fail(fmt::format("\"{}\" is missing", key));
  return *found;
}

JsonObject JsonObject::object(std::string_view key) const {
  return {value(key), fmt::format("{}: {}", where_, key)};
}

std::string JsonObject::text(std::string_view key) const {
  const json& found = value(key);
  if (!found.is_string()) {
    fail(fmt::format("\"{}\" is {}; expected a string", key, short_text(found)));
  }
  return found.get<std::string>();
}

std::string JsonObject::text_or(std::string_view key, std::string_view otherwise) const {
  return has(key) ? text(key) : std::string(otherwise);
}

bool JsonObject::flag_or(std::string_view key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const json& found = value(key);
  if (!found.is_boolean()) {
    fail(fmt::format("\"{}\" is {}; expected true or false", key, short_text(found)));
  }
  return found.get<bool>();
}

int64_t JsonObject::whole_number(std::string_view key, int64_t least, int64_t most) const {
  const json& found = value(key);
  const bool whole = found.is_number_integer() &&
                     !(found.is_number_unsigned() && found.get<uint64_t>() > uint64_t(most));
  if (!whole || found.get<int64_t>() < least || found.get<int64_t>() > most) {
    fail(fmt::format(
        "\"{}\" is {}; expected a whole number of {} to {}", key, short_text(found), least, most));
  }
  return found.get<int64_t>();
}

json parse_json(std::string_view text, const std::string& where) {
  if (config::is_nested_deeper(text)) {
    throw Error(fmt::format("{}: is nested deeper than {} levels", where, config::kMaxJsonDepth));
  }
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    throw Error(fmt::format("{}: is not JSON: error at byte {}", where, error.byte));
  } catch (const json::out_of_range&) {
    throw Error(fmt::format("{}: holds a number that is too large", where));
  }
}

}  // namespace reynard::tokenizer
