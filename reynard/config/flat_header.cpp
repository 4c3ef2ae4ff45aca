#include "reynard/config/flat_header.h"

#include "reynard/config/json_file.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <utility>

namespace reynard::config {

using nlohmann::json;

FlatHeader::FlatHeader(std::string_view bytes, std::filesystem::path path, const FileKind& kind)
    : path_(std::move(path)) {
  if (!bytes.starts_with(fmt::format(R"({{"format":"{}")", kind.format))) {
    fail(fmt::format("is not a {}; {}", kind.name, kind.remedy));
  }
  // Messages print values, and printing recurses: what is nested is never kept.
  int depth = 0;
  const auto is_flat = [&](int, json::parse_event_t event, json&) {
    depth +=
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    return depth <= 1;
  };
  json_ = json::parse(bytes, is_flat, /*allow_exceptions=*/false);
  if (!json_.is_object() || depth != 1) {
    fail(fmt::format("the {}'s header is not valid JSON; {}", kind.name, kind.remedy));
  }
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
