#pragma once
// Letters, digits and blanks of all scripts as Python's str has them, for templates' white space,
// filters and methods.
// Case is Unicode's; where Python's own rules give several letters or look at the neighbours, the
// functions that do not know them throw reynard::Error. Bytes that are not UTF-8 stay.

#include <string>
#include <string_view>

namespace reynard::jinja {

// Those of UTF-8 that a text begins and ends with; it must not be empty.
std::string_view first_character(std::string_view text);
std::string_view last_character(std::string_view text);

// Python's str.isspace of one character, its str.lstrip and its str.rstrip.
bool is_blank(std::string_view character);
std::string_view without_blanks_before(std::string_view text);
std::string_view without_blanks_behind(std::string_view text);

std::string upper_case(std::string_view text);
// Throws for U+0130 and the Greek sigma, whose small letter depends on its place.
std::string lower_case(std::string_view text);
// The first letter of the text, or of every word, as a capital one; all others small. Throws as
// lower_case() does, for letters without a capital one of their own (U+00DF), and in words for
// modifier letters, which may or may not count as letters.
enum class Capitals { kFirst, kWords };
std::string capitalized(std::string_view text, Capitals capitals);

// With the decimal digits of all scripts as ASCII ones.
std::string with_ascii_digits(std::string_view text);

}  // namespace reynard::jinja
