#pragma once
// Letters and digits of all scripts as Python's str has them, for filters and methods of templates.
// Case is Unicode's; where Python's own rules give several letters or look at the neighbours, the
// functions that do not know them throw reynard::Error. Bytes that are not UTF-8 stay.

#include <string>
#include <string_view>

namespace reynard::jinja {

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
