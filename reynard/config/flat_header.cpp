#include "reynard/config/flat_header.h"

#include "reynard/config/json_file.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <utility>

namespace reynard::config {

using nlohmann::json;

namespace {

// A text that should be an object of plain values. Of one that stops being JSON its begin.
struct FlatObject {
  json members;  // is_discarded(): the text is no JSON
  bool is_flat = false;
  std::string first_key;
  json first_value;
};

FlatObject parse(std::string_view text) {
  FlatObject parsed;
  // Messages print values, and printing recurses: what is nested is never kept.
  int brackets = 0;
  int keys = 0;
  const auto keep = [&](int, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) ++brackets;
    if (event == Event::key && ++keys == 1) parsed.first_key = value.get<std::string>();
    if (event == Event::value && keys == 1 && brackets == 1) parsed.first_value = value;
    return brackets <= 1;
  };
  parsed.members = json::parse(text, keep, /*allow_exceptions=*/false);
  parsed.is_flat = parsed.members.is_object() && brackets == 1;
  return parsed;
}

}  // namespace

bool has_format(std::string_view bytes, std::string_view format) {
  const FlatObject header = parse(bytes);
  return header.first_key == "format" && header.first_value == format;
}

FlatHeader::FlatHeader(std::string_view bytes, std::filesystem::path path, const FileKind& kind)
    : path_(std::move(path)) {
  FlatObject header = parse(bytes);
  if (header.first_key != "format" || header.first_value != kind.format) {
    if (header.is_flat && header.members.value("format", json()) == kind.format) {
      fail("header: \"format\" is not its first member");
    }
    fail(fmt::format("is not a {}; {}", kind.name, kind.remedy));
  }
  if (!header.is_flat) {
    fail(fmt::format("the {}'s header is not valid JSON, or nested; {}", kind.name, kind.remedy));
  }
  json_ = std::move(header.members);
}

void FlatHeader::fail(std::string_view what) const {
  throw Error(fmt::format("{}: {}", path_.string(), what));
}

const json& FlatHeader::member(const char* key) const {
  const auto found = json_.find(key);
  if (found == json_.end()) fail(fmt::format("header has no \"{}\"", key));
  return *found;
}

int64_t FlatHeader::integer(const char* key, int64_t min, int64_t max) const {
  const json& value = member(key);
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(max)
                                               : value.is_number_integer();
  if (fits && value.get<int64_t>() >= min && value.get<int64_t>() <= max) {
    return value.get<int64_t>();
  }
  fail(fmt::format("header: {} = {}; expected an integer in {} ... {}",
                   key,
                   json_text(value).substr(0, 80),
                   min,
                   max));
}

std::string FlatHeader::text(const char* key) const {
  const json& value = member(key);
  if (!value.is_string()) fail(fmt::format("header has no text \"{}\"", key));
  return value.get<std::string>();
}

bool FlatHeader::boolean(const char* key) const {
  const json& value = member(key);
  if (!value.is_boolean()) fail(fmt::format("header: {} is neither true nor false", key));
  return value.get<bool>();
}

}  // namespace reynard::config
