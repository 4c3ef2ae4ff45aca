#pragma once
// Characters of UTF-8 text and their Unicode 16 classes. The text must be valid UTF-8 (utf8.h
// repairs what is not): nothing here reads beyond it, but the characters of other text are
// arbitrary.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace reynard::tokenizer {

struct CodePoint {
  char32_t value = 0;
  int length = 1;  // bytes
};

// The character that begins at text[at]; one byte is taken where none does.
inline CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t left = text.size() - at;
  if (lead >= 0xf0 && left >= 4) {
    return {static_cast<char32_t>((lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 |
                                  (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f)),
            4};
  }
  if (lead >= 0xe0 && left >= 3) {
    return {static_cast<char32_t>((lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f)),
            3};
  }
  if (lead >= 0xc0 && left >= 2) {
    return {static_cast<char32_t>((lead & 0x1f) << 6 | (byte(1) & 0x3f)), 2};
  }
  return {lead, 1};
}

// The character that ends before text[end]; end > 0.
inline CodePoint code_point_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (text[begin] & 0xc0) == 0x80) --begin;
  return {code_point_at(text.substr(0, end), begin).value, static_cast<int>(end - begin)};
}

void append_utf8(std::string& text, char32_t c);

// The number that a text begins with, of so many hexadecimal digits (8 at most); nothing where it
// has fewer.
std::optional<char32_t> leading_hex(std::string_view text, std::size_t num_digits);

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// Letters are \p{L}, numbers \p{N}, spaces \s (White_Space).
CharClass char_class(char32_t c);
inline bool is_space(char32_t c) {
  return char_class(c) == CharClass::kSpace;
}
inline bool is_ascii_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
// \w of the regex libraries: letters, marks, decimal digits, connectors and joiners.
bool is_word(char32_t c);

// Characters that Unicode got after version 14, which older libraries know nothing about.
struct CharRange {
  char category[3];  // "Lu", "Mn", ...
  char script[5];    // "Latn", ...; "": one that is as young
  char32_t first;
  char32_t last;
};
std::span<const CharRange> characters_since_unicode_14();

}  // namespace reynard::tokenizer
