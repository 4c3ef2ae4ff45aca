#include "reynard/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>

namespace reynard::tokenizer {

namespace {

constexpr char32_t kNumCharacters = 0x110000;

// General categories of the Unicode Character Database, version 16.0, of what it holds more than
// version 14.0.
constexpr CharRange kSinceUnicode14[] = {
    {"Lu", 0x1c89, 0x1c89},   {"Lu", 0xa7cb, 0xa7cc},   {"Lu", 0xa7da, 0xa7da},
    {"Lu", 0xa7dc, 0xa7dc},   {"Lu", 0x10d50, 0x10d65}, {"Ll", 0x1c8a, 0x1c8a},
    {"Ll", 0xa7cd, 0xa7cd},   {"Ll", 0xa7db, 0xa7db},   {"Ll", 0x10d70, 0x10d85},
    {"Ll", 0x1df25, 0x1df2a}, {"Lm", 0x10d4e, 0x10d4e}, {"Lm", 0x10d6f, 0x10d6f},
    {"Lm", 0x16d40, 0x16d42}, {"Lm", 0x16d6b, 0x16d6c}, {"Lm", 0x1e030, 0x1e06d},
    {"Lm", 0x1e4eb, 0x1e4eb}, {"Lo", 0x105c0, 0x105f3}, {"Lo", 0x10d4a, 0x10d4d},
    {"Lo", 0x10d4f, 0x10d4f}, {"Lo", 0x10ec2, 0x10ec4}, {"Lo", 0x1123f, 0x11240},
    {"Lo", 0x11380, 0x11389}, {"Lo", 0x1138b, 0x1138b}, {"Lo", 0x1138e, 0x1138e},
    {"Lo", 0x11390, 0x113b5}, {"Lo", 0x113b7, 0x113b7}, {"Lo", 0x113d1, 0x113d1},
    {"Lo", 0x113d3, 0x113d3}, {"Lo", 0x11bc0, 0x11be0}, {"Lo", 0x11f02, 0x11f02},
    {"Lo", 0x11f04, 0x11f10}, {"Lo", 0x11f12, 0x11f33}, {"Lo", 0x1342f, 0x1342f},
    {"Lo", 0x13441, 0x13446}, {"Lo", 0x13460, 0x143fa}, {"Lo", 0x16100, 0x1611d},
    {"Lo", 0x16d43, 0x16d6a}, {"Lo", 0x18cff, 0x18cff}, {"Lo", 0x1b132, 0x1b132},
    {"Lo", 0x1b155, 0x1b155}, {"Lo", 0x1e4d0, 0x1e4ea}, {"Lo", 0x1e5d0, 0x1e5ed},
    {"Lo", 0x1e5f0, 0x1e5f0}, {"Lo", 0x2b739, 0x2b739}, {"Lo", 0x2ebf0, 0x2ee5d},
    {"Lo", 0x31350, 0x323af}, {"M", 0x897, 0x897},      {"M", 0xcf3, 0xcf3},
    {"M", 0xece, 0xece},      {"M", 0x10d69, 0x10d6d},  {"M", 0x10efc, 0x10eff},
    {"M", 0x11241, 0x11241},  {"M", 0x113b8, 0x113c0},  {"M", 0x113c2, 0x113c2},
    {"M", 0x113c5, 0x113c5},  {"M", 0x113c7, 0x113ca},  {"M", 0x113cc, 0x113d0},
    {"M", 0x113d2, 0x113d2},  {"M", 0x113e1, 0x113e2},  {"M", 0x11f00, 0x11f01},
    {"M", 0x11f03, 0x11f03},  {"M", 0x11f34, 0x11f3a},  {"M", 0x11f3e, 0x11f42},
    {"M", 0x11f5a, 0x11f5a},  {"M", 0x13440, 0x13440},  {"M", 0x13447, 0x13455},
    {"M", 0x1611e, 0x1612f},  {"M", 0x1e08f, 0x1e08f},  {"M", 0x1e4ec, 0x1e4ef},
    {"M", 0x1e5ee, 0x1e5ef},  {"P", 0x1b4e, 0x1b4f},    {"P", 0x1b7f, 0x1b7f},
    {"P", 0x10d6e, 0x10d6e},  {"P", 0x113d4, 0x113d5},  {"P", 0x113d7, 0x113d8},
    {"P", 0x11b00, 0x11b09},  {"P", 0x11be1, 0x11be1},  {"P", 0x11f43, 0x11f4f},
    {"P", 0x16d6d, 0x16d6f},  {"P", 0x1e5ff, 0x1e5ff},  {"S", 0x2427, 0x2429},
    {"S", 0x2ffc, 0x2fff},    {"S", 0x31e4, 0x31e5},    {"S", 0x31ef, 0x31ef},
    {"S", 0x10d8e, 0x10d8f},  {"S", 0x1cc00, 0x1ccef},  {"S", 0x1cd00, 0x1ceb3},
    {"S", 0x1f6dc, 0x1f6dc},  {"S", 0x1f774, 0x1f776},  {"S", 0x1f77b, 0x1f77f},
    {"S", 0x1f7d9, 0x1f7d9},  {"S", 0x1f8b2, 0x1f8bb},  {"S", 0x1f8c0, 0x1f8c1},
    {"S", 0x1fa75, 0x1fa77},  {"S", 0x1fa87, 0x1fa89},  {"S", 0x1fa8f, 0x1fa8f},
    {"S", 0x1faad, 0x1faaf},  {"S", 0x1fabb, 0x1fabf},  {"S", 0x1fac6, 0x1fac6},
    {"S", 0x1face, 0x1facf},  {"S", 0x1fada, 0x1fadc},  {"S", 0x1fadf, 0x1fadf},
    {"S", 0x1fae8, 0x1fae9},  {"S", 0x1faf7, 0x1faf8},  {"S", 0x1fbcb, 0x1fbef},
    {"Nd", 0x10d40, 0x10d49}, {"Nd", 0x116d0, 0x116e3}, {"Nd", 0x11bf0, 0x11bf9},
    {"Nd", 0x11f50, 0x11f59}, {"Nd", 0x16130, 0x16139}, {"Nd", 0x16d70, 0x16d79},
    {"Nd", 0x1ccf0, 0x1ccf9}, {"Nd", 0x1e4f0, 0x1e4f9}, {"Nd", 0x1e5f1, 0x1e5fa},
    {"No", 0x1d2c0, 0x1d2d3},
};

constexpr CharRange kSpaces[] = {{"Z", 0x9, 0xd},
                                 {"Z", 0x20, 0x20},
                                 {"Z", 0x85, 0x85},
                                 {"Z", 0xa0, 0xa0},
                                 {"Z", 0x1680, 0x1680},
                                 {"Z", 0x2000, 0x200a},
                                 {"Z", 0x2028, 0x2029},
                                 {"Z", 0x202f, 0x202f},
                                 {"Z", 0x205f, 0x205f},
                                 {"Z", 0x3000, 0x3000}};

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
