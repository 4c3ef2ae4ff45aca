#include "reynard/config/json_file.h"

#include "reynard/config/text_file.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

namespace reynard::config {

bool is_nested_deeper(std::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

std::optional<std::string> repeated_key(std::string_view text) {
  using Event = nlohmann::json::parse_event_t;
  std::optional<std::string> repeated;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto note = [&](int /*depth*/, Event event, nlohmann::json& parsed) {
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second && !repeated) {
      repeated = parsed.get<std::string>();
    }
    return true;
  };
  const nlohmann::json json = nlohmann::json::parse(text, note, /*allow_exceptions=*/false);
  return json.is_discarded() ? std::nullopt : repeated;
}

nlohmann::json parse_json_text(std::string_view text, int max_depth) {
  // The parser takes a zero byte for the end, whatever follows it.
  if (text.find('\0') != std::string_view::npos || is_nested_deeper(text, max_depth)) {
    return nlohmann::json::value_t::discarded;
  }
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

namespace {

// Of what the parser says, "... at line 1, column 8: syntax error while parsing value - invalid
// literal; last read: '...'", what is wrong: the place is ours, and what was read may be the whole
// text.
std::string wrong_syntax(std::string_view said) {
  constexpr std::string_view kBegin = " - ";
  const std::size_t begin = said.find(kBegin);
  if (begin == std::string_view::npos) return "is not readable";
  said.remove_prefix(begin + kBegin.size());
  return std::string(said.substr(0, said.find("; last read: ")));
}

// Of "... number overflow parsing '1e999'" the number, which may be the whole text.
std::string shown_number(std::string_view said) {
  constexpr std::size_t kMaxShown = 40;
  const std::string_view number = said.substr(std::min(said.find('\''), said.size()));
  return number.size() > kMaxShown ? fmt::format("{}...", number.substr(0, kMaxShown))
                                   : std::string(number);
}

}  // namespace

std::string json_mistake(std::string_view text, int max_depth) {
  if (is_nested_deeper(text, max_depth)) return {};
  std::size_t place = text.find('\0');
  std::string reason = "a zero byte";
  try {
    std::ignore = nlohmann::json::parse(text);
    if (place == std::string_view::npos) return {};
  } catch (const nlohmann::json::parse_error& error) {
    const std::size_t stopped = std::max<std::size_t>(error.byte, 1) - 1;
    if (stopped < place) place = stopped, reason = wrong_syntax(error.what());
  } catch (const nlohmann::json::exception& error) {  // a number beyond f64
    return fmt::format("the number {} is too large", shown_number(error.what()));
  }
  const std::string_view before = text.substr(0, place);
  const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return fmt::format("line {}, column {}: {}",
                     std::ranges::count(before, '\n') + 1,
                     before.size() - line_begin + 1,
                     reason);
}

nlohmann::json read_json_object(const std::filesystem::path& file, uintmax_t max_bytes) {
  const std::string text = read_text_file(file, max_bytes);
  nlohmann::json json = parse_json_text(text);
  if (json.is_object()) return json;
  const std::string mistake = json_mistake(text);
  throw Error(fmt::format(
      "{}: is not a JSON object{}{}", file.string(), mistake.empty() ? "" : ": ", mistake));
}

nlohmann::json json_object_or_null(const std::filesystem::path& file, uintmax_t max_bytes) {
  if (std::error_code error; !std::filesystem::is_regular_file(file, error)) return nullptr;
  try {
    return read_json_object(file, max_bytes);
  } catch (const Error&) {
    return nullptr;
  }
}

nlohmann::json or_null(std::optional<int64_t> value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

nlohmann::json or_null(std::optional<double> value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

nlohmann::json number_or_null(double x) {
  return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json();
}

std::string json_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

std::string ascii_json_text(const nlohmann::json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

}  // namespace reynard::config
