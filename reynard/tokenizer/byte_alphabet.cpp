#include "reynard/tokenizer/byte_alphabet.h"

#include "reynard/tokenizer/unicode.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace reynard::tokenizer {

namespace {

struct Alphabet {
  std::array<char32_t, 256> character;
  std::array<int16_t, 512> byte;
};

// Printable Latin-1 characters stand for themselves, the other bytes, in order, for U+0100, ...
Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  char32_t next = 256;
  for (char32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    alphabet.character[b] = printable ? b : next++;
    alphabet.byte[alphabet.character[b]] = static_cast<int16_t>(b);
  }
  return alphabet;
}

const Alphabet& alphabet() {
  static const Alphabet made = make_alphabet();
  return made;
}

}  // namespace

std::optional<std::string> bytes_of_characters(std::string_view token) {
  std::string bytes;
  for (std::size_t i = 0; i < token.size();) {
    const CodePoint c = code_point_at(token, i);
    const int byte = c.value < alphabet().byte.size() ? alphabet().byte[c.value] : -1;
    if (byte < 0) return std::nullopt;
    bytes += static_cast<char>(byte);
    i += static_cast<std::size_t>(c.length);
  }
  return bytes;
}

std::string characters_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) {
    append_utf8(token, alphabet().character[static_cast<unsigned char>(byte)]);
  }
  return token;
}

}  // namespace reynard::tokenizer
