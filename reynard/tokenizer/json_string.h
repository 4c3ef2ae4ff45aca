#pragma once
// Strings of JSON as Python's json module reads and writes them: lenient towards halves of
// surrogate pairs, which stand for no character.

#include <optional>
#include <string>
#include <string_view>

namespace reynard::tokenizer {

// The text of the inside of a JSON string (what stands between the quotes); nothing where it is
// none. Halves of surrogate pairs become U+FFFD.
std::optional<std::string> from_json_string(std::string_view inside);

// The inside of a JSON string for valid UTF-8 text, all ASCII.
std::string to_json_string(std::string_view text);

}  // namespace reynard::tokenizer
