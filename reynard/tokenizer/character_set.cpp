#include "reynard/tokenizer/character_set.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/pcre2_program.h"
#include "reynard/tokenizer/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace reynard::tokenizer {

namespace {

constexpr char32_t kNumCharacters = 0x110000;

constexpr std::string_view kCategories[] = {
    "l",  "lu", "ll", "lt", "lm", "lo", "lc", "m",  "mn", "mc", "me", "n",  "nd",
    "nl", "no", "p",  "pc", "pd", "ps", "pe", "pi", "pf", "po", "s",  "sm", "sc",
    "sk", "so", "z",  "zs", "zl", "zp", "c",  "cc", "cf", "cs", "co", "cn"};

// Properties of the same characters since Unicode 14; uppercase of all that Lu has since.
constexpr std::string_view kOtherProperties[] = {"any",
                                                 "ascii",
                                                 "asciihexdigit",
                                                 "bidicontrol",
                                                 "emojicomponent",
                                                 "emojimodifier",
                                                 "extendedpictographic",
                                                 "hexdigit",
                                                 "joincontrol",
                                                 "patternsyntax",
                                                 "patternwhitespace",
                                                 "quotationmark",
                                                 "radical",
                                                 "regionalindicator",
                                                 "space",
                                                 "upper",
                                                 "uppercase",
                                                 "variationselector",
                                                 "whitespace"};

// Scripts that have got characters since Unicode 14.
constexpr std::pair<std::string_view, std::string_view> kGrownScripts[] = {
    {"arabic", "Arab"},
    {"balinese", "Bali"},
    {"common", "Zyyy"},
    {"cyrillic", "Cyrl"},
    {"devanagari", "Deva"},
    {"egyptianhieroglyphs", "Egyp"},
    {"han", "Hani"},
    {"hiragana", "Hira"},
    {"kannada", "Knda"},
    {"katakana", "Kana"},
    {"khitansmallscript", "Kits"},
    {"khojki", "Khoj"},
    {"lao", "Laoo"},
    {"latin", "Latn"},
    {"myanmar", "Mymr"}};

// Upper and lower case since Unicode 14: so many pairs from these on.
struct CasePairs {
  char32_t upper, lower, count;
};
constexpr CasePairs kLaterCases[] = {{0x1c89, 0x1c8a, 1},
                                     {0xa7cb, 0x264, 1},
                                     {0xa7cc, 0xa7cd, 1},
                                     {0xa7da, 0xa7db, 1},
                                     {0xa7dc, 0x19b, 1},
                                     {0x10d50, 0x10d70, 22}};

std::string member(char32_t first, char32_t last) {
  return fmt::format(
      "\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(first), static_cast<uint32_t>(last));
}

template <class Which>
std::string added_members(const Which& which) {
  std::string members;
  for (const CharRange& range : characters_since_unicode_14()) {
    if (which(range)) members += member(range.first, range.last);
  }
  return members;
}

std::string added_of_category(std::string_view category) {
  return added_members([&](const CharRange& range) {
    return std::string_view(range.category).starts_with(category);
  });
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
  }
  return out;
}

// Calls found(first, last) for the runs of characters that the pattern matches one by one.
template <class Found>
void for_each_range(const std::string& pattern, const Found& found) {
  static const std::string all = [] {
    std::string text;
    for (char32_t c = 0; c < kNumCharacters; ++c) {
      if (c < 0xd800 || c >= 0xe000) append_utf8(text, c);
    }
    return text;
  }();
  Pcre2Program(fmt::format("(?:{})++", pattern))
      .for_each_match(all, [&](std::size_t begin, std::size_t end) {
        found(code_point_at(all, begin).value, code_point_before(all, end).value);
      });
}

std::string matched_members(const std::string& pattern) {
  std::string members;
  for_each_range(pattern, [&](char32_t first, char32_t last) { members += member(first, last); });
  return members;
}

std::string category_members(std::string name) {  // as in kCategories
  if (name == "lc") return "\\p{L&}" + added_of_category("Lu") + added_of_category("Ll");
  name[0] = static_cast<char>(name[0] & ~0x20);
  const std::string members = fmt::format("\\p{{{}}}{}", name, added_of_category(name));
  if (name == "Mn") return matched_members(fmt::format("(?!\\x{{1171e}})[{}]", members));
  if (name == "Mc") return members + "\\x{1171e}";
  if (name != "C" && name != "Cn") return members;
  const std::string assigned = added_members(
      [&](const CharRange& range) { return name == "Cn" || range.category[0] != 'C'; });
  return matched_members(fmt::format("(?![{}])[{}]", assigned, members));
}

// Characters that are cases of each other, by what they fold to.
using CaseClasses = std::map<std::u32string, std::vector<char32_t>>;

const CaseClasses& case_classes() {
  static const CaseClasses made = [] {
    CaseClasses classes;
    const auto add = [&](const std::u32string& folded, char32_t c) {
      std::vector<char32_t>& of_class = classes[folded];
      if (of_class.empty() && folded.size() == 1) of_class.push_back(folded[0]);
      of_class.push_back(c);
    };
    for (char32_t c = 0; c < kNumCharacters; ++c) {
      std::array<utf8proc_int32_t, 8> folded{};
      int boundary = 0;
      const auto size = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c),
                                                folded.data(),
                                                folded.size(),
                                                UTF8PROC_CASEFOLD,
                                                &boundary);
      if (size < 1 || (size == 1 && folded[0] == static_cast<utf8proc_int32_t>(c))) continue;
      add({folded.begin(), folded.begin() + size}, c);
    }
    for (const CasePairs& pairs : kLaterCases) {
      for (char32_t i = 0; i < pairs.count; ++i) add({pairs.lower + i}, pairs.upper + i);
    }
    return classes;
  }();
  return made;
}

}  // namespace

std::string space_members() {  // White_Space; PCRE2's \s has U+180E too
  return "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
         "\\x{205f}\\x{3000}";
}

std::string digit_members() {
  return category_members("nd");
}

std::string word_members() {
  return "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}" + added_of_category("L") + added_of_category("M") +
         added_of_category("Nd") +
         "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
}

std::optional<std::string> property_members(std::string_view name) {
  std::string key = lower_case(name);
  std::erase_if(key, [](char c) { return c == ' ' || c == '_' || c == '-'; });
  if (std::ranges::find(kCategories, key) != std::end(kCategories)) return category_members(key);
  if (std::ranges::find(kOtherProperties, key) != std::end(kOtherProperties)) {
    return fmt::format("\\p{{{}}}{}", key, key.starts_with("upper") ? added_of_category("Lu") : "");
  }
  const bool letters = !key.empty() && std::ranges::all_of(key, is_ascii_letter);
  if (!letters || key == "unknown" || key == "zzzz") return std::nullopt;
  const std::string script = fmt::format("\\p{{sc:{}}}", key);
  try {
    Pcre2Program{script};
  } catch (const Error&) {
    return std::nullopt;
  }
  const auto* const grown = std::ranges::find_if(kGrownScripts, [&](const auto& names) {
    return key == names.first || key == lower_case(names.second);
  });
  if (grown == std::end(kGrownScripts)) return script;
  return script +
         added_members([&](const CharRange& range) { return range.script == grown->second; });
}

std::string other_members(const std::string& members) {
  return matched_members(fmt::format("[^{}]", members));
}

bool has_case(char32_t c) {
  static const std::unordered_set<char32_t> cased = [] {
    std::unordered_set<char32_t> all;
    for (const auto& [folded, of_class] : case_classes()) {
      all.insert(folded.begin(), folded.end());
      all.insert(of_class.begin(), of_class.end());
    }
    return all;
  }();
  return cased.contains(c);
}

std::optional<CaselessMembers> caseless_members(const std::string& members) {
  std::vector<bool> matched(kNumCharacters);
  for_each_range(fmt::format("[{}]", members), [&](char32_t first, char32_t last) {
    std::fill(matched.begin() + first, matched.begin() + last + 1, true);
  });
  const auto is_member = [&](char32_t c) { return matched[c]; };
  CaselessMembers caseless;
  for (const bool single : {true, false}) {  // what single ones add counts for the others
    for (const auto& [folded, of_class] : case_classes()) {
      if ((folded.size() == 1) != single || std::ranges::none_of(of_class, is_member)) continue;
      const bool all = std::ranges::all_of(of_class, is_member);
      if (!single) {
        if (!all) return std::nullopt;
        caseless.several = true;
        if (!std::ranges::all_of(folded, is_member)) caseless.several_of_members = false;
      } else if (!all) {
        for (const char32_t c : of_class) {
          if (!matched[c]) caseless.added += member(c, c);
          matched[c] = true;
        }
      }
    }
  }
  return caseless;
}

}  // namespace reynard::tokenizer
