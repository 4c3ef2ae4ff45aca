#pragma once
// Sets of characters, written as the members of [...] in PCRE2's syntax, as Oniguruma understands
// them: Unicode 16, \p{Han} without Script_Extensions, what (?i) adds to a set.

#include <optional>
#include <string>
#include <string_view>

namespace reynard::tokenizer {

std::string space_members();  // \s
std::string digit_members();  // \d
std::string word_members();   // \w inside [...]
// \p{name}: a general category, a script or one of the few others that are the same in both
// libraries; nothing for what is unknown.
std::optional<std::string> property_members(std::string_view name);

// All characters that the members do not match. Throws reynard::Error for what PCRE2 cannot read.
std::string other_members(const std::string& members);

// The character has another case, or is one of several that are, as ʼ and n are ŉ.
bool has_case(char32_t c);

struct CaselessMembers {
  std::string added;     // what (?i) adds to the members
  bool several = false;  // they match several characters as one too, as ß does ss
  // Repeated without end, this makes no difference.
  bool several_of_members = true;
};
// Nothing: what (?i) adds cannot be told. Throws reynard::Error for what PCRE2 cannot read.
std::optional<CaselessMembers> caseless_members(const std::string& members);

}  // namespace reynard::tokenizer
