#include "reynard/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>

namespace reynard::tokenizer {

namespace {

constexpr char32_t kNumCharacters = 0x110000;

// Of the Unicode Character Database, version 16.0, what it holds more than version 14.0.
constexpr CharRange kSinceUnicode14[] = {
    {"Lu", "Cyrl", 0x1c89, 0x1c89},   {"Lu", "Latn", 0xa7cb, 0xa7cc},
    {"Lu", "Latn", 0xa7da, 0xa7da},   {"Lu", "Latn", 0xa7dc, 0xa7dc},
    {"Lu", "", 0x10d50, 0x10d65},     {"Ll", "Cyrl", 0x1c8a, 0x1c8a},
    {"Ll", "Latn", 0xa7cd, 0xa7cd},   {"Ll", "Latn", 0xa7db, 0xa7db},
    {"Ll", "", 0x10d70, 0x10d85},     {"Ll", "Latn", 0x1df25, 0x1df2a},
    {"Lm", "", 0x10d4e, 0x10d4e},     {"Lm", "", 0x10d6f, 0x10d6f},
    {"Lm", "", 0x16d40, 0x16d42},     {"Lm", "", 0x16d6b, 0x16d6c},
    {"Lm", "Cyrl", 0x1e030, 0x1e06d}, {"Lm", "", 0x1e4eb, 0x1e4eb},
    {"Lo", "", 0x105c0, 0x105f3},     {"Lo", "", 0x10d4a, 0x10d4d},
    {"Lo", "", 0x10d4f, 0x10d4f},     {"Lo", "Arab", 0x10ec2, 0x10ec4},
    {"Lo", "Khoj", 0x1123f, 0x11240}, {"Lo", "", 0x11380, 0x11389},
    {"Lo", "", 0x1138b, 0x1138b},     {"Lo", "", 0x1138e, 0x1138e},
    {"Lo", "", 0x11390, 0x113b5},     {"Lo", "", 0x113b7, 0x113b7},
    {"Lo", "", 0x113d1, 0x113d1},     {"Lo", "", 0x113d3, 0x113d3},
    {"Lo", "", 0x11bc0, 0x11be0},     {"Lo", "", 0x11f02, 0x11f02},
    {"Lo", "", 0x11f04, 0x11f10},     {"Lo", "", 0x11f12, 0x11f33},
    {"Lo", "Egyp", 0x1342f, 0x1342f}, {"Lo", "Egyp", 0x13441, 0x13446},
    {"Lo", "Egyp", 0x13460, 0x143fa}, {"Lo", "", 0x16100, 0x1611d},
    {"Lo", "", 0x16d43, 0x16d6a},     {"Lo", "Kits", 0x18cff, 0x18cff},
    {"Lo", "Hira", 0x1b132, 0x1b132}, {"Lo", "Kana", 0x1b155, 0x1b155},
    {"Lo", "", 0x1e4d0, 0x1e4ea},     {"Lo", "", 0x1e5d0, 0x1e5ed},
    {"Lo", "", 0x1e5f0, 0x1e5f0},     {"Lo", "Hani", 0x2b739, 0x2b739},
    {"Lo", "Hani", 0x2ebf0, 0x2ee5d}, {"Lo", "Hani", 0x31350, 0x323af},
    {"Mn", "Arab", 0x897, 0x897},     {"Mn", "Laoo", 0xece, 0xece},
    {"Mn", "", 0x10d69, 0x10d6d},     {"Mn", "Arab", 0x10efc, 0x10eff},
    {"Mn", "Khoj", 0x11241, 0x11241}, {"Mn", "", 0x113bb, 0x113c0},
    {"Mn", "", 0x113ce, 0x113ce},     {"Mn", "", 0x113d0, 0x113d0},
    {"Mn", "", 0x113d2, 0x113d2},     {"Mn", "", 0x113e1, 0x113e2},
    {"Mn", "", 0x11f00, 0x11f01},     {"Mn", "", 0x11f36, 0x11f3a},
    {"Mn", "", 0x11f40, 0x11f40},     {"Mn", "", 0x11f42, 0x11f42},
    {"Mn", "", 0x11f5a, 0x11f5a},     {"Mn", "Egyp", 0x13440, 0x13440},
    {"Mn", "Egyp", 0x13447, 0x13455}, {"Mn", "", 0x1611e, 0x16129},
    {"Mn", "", 0x1612d, 0x1612f},     {"Mn", "Cyrl", 0x1e08f, 0x1e08f},
    {"Mn", "", 0x1e4ec, 0x1e4ef},     {"Mn", "", 0x1e5ee, 0x1e5ef},
    {"Mc", "Knda", 0xcf3, 0xcf3},     {"Mc", "", 0x113b8, 0x113ba},
    {"Mc", "", 0x113c2, 0x113c2},     {"Mc", "", 0x113c5, 0x113c5},
    {"Mc", "", 0x113c7, 0x113ca},     {"Mc", "", 0x113cc, 0x113cd},
    {"Mc", "", 0x113cf, 0x113cf},     {"Mc", "", 0x11f03, 0x11f03},
    {"Mc", "", 0x11f34, 0x11f35},     {"Mc", "", 0x11f3e, 0x11f3f},
    {"Mc", "", 0x11f41, 0x11f41},     {"Mc", "", 0x1612a, 0x1612c},
    {"Nd", "", 0x10d40, 0x10d49},     {"Nd", "Mymr", 0x116d0, 0x116e3},
    {"Nd", "", 0x11bf0, 0x11bf9},     {"Nd", "", 0x11f50, 0x11f59},
    {"Nd", "", 0x16130, 0x16139},     {"Nd", "", 0x16d70, 0x16d79},
    {"Nd", "Zyyy", 0x1ccf0, 0x1ccf9}, {"Nd", "", 0x1e4f0, 0x1e4f9},
    {"Nd", "", 0x1e5f1, 0x1e5fa},     {"No", "Zyyy", 0x1d2c0, 0x1d2d3},
    {"Pd", "", 0x10d6e, 0x10d6e},     {"Po", "Bali", 0x1b4e, 0x1b4f},
    {"Po", "Bali", 0x1b7f, 0x1b7f},   {"Po", "", 0x113d4, 0x113d5},
    {"Po", "", 0x113d7, 0x113d8},     {"Po", "Deva", 0x11b00, 0x11b09},
    {"Po", "", 0x11be1, 0x11be1},     {"Po", "", 0x11f43, 0x11f4f},
    {"Po", "", 0x16d6d, 0x16d6f},     {"Po", "", 0x1e5ff, 0x1e5ff},
    {"Sm", "", 0x10d8e, 0x10d8f},     {"So", "Zyyy", 0x2427, 0x2429},
    {"So", "Zyyy", 0x2ffc, 0x2fff},   {"So", "Zyyy", 0x31e4, 0x31e5},
    {"So", "Zyyy", 0x31ef, 0x31ef},   {"So", "Zyyy", 0x1cc00, 0x1ccef},
    {"So", "Zyyy", 0x1cd00, 0x1ceb3}, {"So", "Zyyy", 0x1f6dc, 0x1f6dc},
    {"So", "Zyyy", 0x1f774, 0x1f776}, {"So", "Zyyy", 0x1f77b, 0x1f77f},
    {"So", "Zyyy", 0x1f7d9, 0x1f7d9}, {"So", "Zyyy", 0x1f8b2, 0x1f8bb},
    {"So", "Zyyy", 0x1f8c0, 0x1f8c1}, {"So", "Zyyy", 0x1fa75, 0x1fa77},
    {"So", "Zyyy", 0x1fa87, 0x1fa89}, {"So", "Zyyy", 0x1fa8f, 0x1fa8f},
    {"So", "Zyyy", 0x1faad, 0x1faaf}, {"So", "Zyyy", 0x1fabb, 0x1fabf},
    {"So", "Zyyy", 0x1fac6, 0x1fac6}, {"So", "Zyyy", 0x1face, 0x1facf},
    {"So", "Zyyy", 0x1fada, 0x1fadc}, {"So", "Zyyy", 0x1fadf, 0x1fadf},
    {"So", "Zyyy", 0x1fae8, 0x1fae9}, {"So", "Zyyy", 0x1faf7, 0x1faf8},
    {"So", "Zyyy", 0x1fbcb, 0x1fbef}, {"Cf", "Egyp", 0x13439, 0x1343f},
};

constexpr CharRange kSpaces[] = {{"Z", "Zyyy", 0x9, 0xd},
                                 {"Z", "Zyyy", 0x20, 0x20},
                                 {"Z", "Zyyy", 0x85, 0x85},
                                 {"Z", "Zyyy", 0xa0, 0xa0},
                                 {"Z", "Zyyy", 0x1680, 0x1680},
                                 {"Z", "Zyyy", 0x2000, 0x200a},
                                 {"Z", "Zyyy", 0x2028, 0x2029},
                                 {"Z", "Zyyy", 0x202f, 0x202f},
                                 {"Z", "Zyyy", 0x205f, 0x205f},
                                 {"Z", "Zyyy", 0x3000, 0x3000}};

struct CharTables {
  std::array<uint8_t, kNumCharacters> of;  // CharClass, and kWordBit
};
constexpr uint8_t kClassMask = 0x03;
constexpr uint8_t kWordBit = 0x04;

uint8_t entry(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return static_cast<uint8_t>(CharClass::kLetter) | kWordBit;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
      return static_cast<uint8_t>(CharClass::kNumber) | kWordBit;
    case UTF8PROC_CATEGORY_NO:
      return static_cast<uint8_t>(CharClass::kNumber);
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_PC:
      return kWordBit;
    default:
      return 0;
  }
}

uint8_t entry_of_category(const char* category) {
  switch (category[0]) {
    case 'L':
      return static_cast<uint8_t>(CharClass::kLetter) | kWordBit;
    case 'N':
      return static_cast<uint8_t>(CharClass::kNumber) | (category[1] == 'd' ? kWordBit : 0);
    case 'M':
      return kWordBit;
    case 'Z':
      return static_cast<uint8_t>(CharClass::kSpace);
    default:
      return 0;
  }
}

std::unique_ptr<const CharTables> make_tables() {
  auto tables = std::make_unique<CharTables>();
  for (char32_t c = 0; c < kNumCharacters; ++c) tables->of[c] = entry(c);
  const auto set = [&](std::span<const CharRange> ranges) {
    for (const CharRange& range : ranges) {
      std::fill(tables->of.begin() + range.first,
                tables->of.begin() + range.last + 1,
                entry_of_category(range.category));
    }
  };
  set(kSinceUnicode14);
  set(kSpaces);
  for (const char32_t joiner : {0x200c, 0x200d}) tables->of[joiner] |= kWordBit;
  // Circled and squared letters are alphabetic, though their category is So.
  for (const auto& [first, last] : {std::pair<char32_t, char32_t>{0x24b6, 0x24e9},
                                    {0x1f130, 0x1f149},
                                    {0x1f150, 0x1f169},
                                    {0x1f170, 0x1f189}}) {
    for (char32_t c = first; c <= last; ++c) tables->of[c] |= kWordBit;
  }
  return tables;
}

const CharTables& tables() {
  static const std::unique_ptr<const CharTables> made = make_tables();
  return *made;
}

}  // namespace

CharClass char_class(char32_t c) {
  static const CharTables& all = tables();
  return c < kNumCharacters ? static_cast<CharClass>(all.of[c] & kClassMask) : CharClass::kOther;
}

bool is_word(char32_t c) {
  return c < kNumCharacters && (tables().of[c] & kWordBit) != 0;
}

std::span<const CharRange> characters_since_unicode_14() {
  return kSinceUnicode14;
}

void append_utf8(std::string& text, char32_t c) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xc0 | c >> 6);
    add(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    add(0xe0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3f));
    add(0x80 | (c & 0x3f));
  } else {
    add(0xf0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3f));
    add(0x80 | (c >> 6 & 0x3f));
    add(0x80 | (c & 0x3f));
  }
}

std::optional<char32_t> leading_hex(std::string_view text, std::size_t num_digits) {
  if (text.size() < num_digits) return {};
  const char* const end = text.data() + num_digits;
  uint32_t number = 0;
  if (std::from_chars(text.data(), end, number, 16).ptr != end) return {};
  return number;
}

}  // namespace reynard::tokenizer
