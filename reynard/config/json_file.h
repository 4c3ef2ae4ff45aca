#pragma once
// JSON of this and other programs: results, run and model descriptions, requests.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace reynard::config {

// Values are copied, compared and printed by recursion, which a text must not be able to drive
// deeper than the stack.
constexpr int kMaxJsonDepth = 64;

// Whether brackets of a JSON text are nested more than max_depth deep.
bool is_nested_deeper(std::string_view text, int max_depth = kMaxJsonDepth);

// The value of a JSON text; is_discarded() where it is none, or nested deeper.
nlohmann::json parse_json_text(std::string_view text, int max_depth = kMaxJsonDepth);

// A key that an object of the text has twice, of which parse_json_text() keeps the last; nothing
// where there is none or the text is no JSON.
std::optional<std::string> repeated_key(std::string_view text);

// Where and why a text stops being JSON: "line 3, column 7: unexpected '}'; expected ..."; without
// a place for a number that is too large. A few words, whatever the text is; empty: it is JSON, or
// nested deeper.
std::string json_mistake(std::string_view text, int max_depth = kMaxJsonDepth);

// A JSON file that must hold an object. Throws reynard::Error, naming it, where it cannot be read,
// is larger than this, or holds something else.
nlohmann::json read_json_object(const std::filesystem::path& file,
                                uintmax_t max_bytes = uintmax_t{256} << 20U);

// The same, but null for whatever is no such file.
nlohmann::json json_object_or_null(const std::filesystem::path& file,
                                   uintmax_t max_bytes = uintmax_t{256} << 20U);

// The value, or null where there is none.
nlohmann::json or_null(std::optional<int64_t> value);
nlohmann::json or_null(std::optional<double> value);

// JSON knows neither NaN nor infinities: null.
nlohmann::json number_or_null(double x);

// JSON as text: on one line, or with line ends and so many blanks before each level. Bytes that are
// not UTF-8, as paths and generated text may hold, become U+FFFD.
std::string json_text(const nlohmann::json& json, int indent = -1);
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);

// The same on one line of ASCII: other characters are escaped.
std::string ascii_json_text(const nlohmann::json& json);

}  // namespace reynard::config
