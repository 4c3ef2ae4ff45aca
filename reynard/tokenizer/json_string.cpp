#include "reynard/tokenizer/json_string.h"

#include "reynard/tokenizer/unicode.h"

#include <fmt/format.h>

namespace reynard::tokenizer {

namespace {

constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
constexpr std::string_view kLetters = "\"\\bfnrt";

// The value of four hexadecimal digits; -1: they are none.
int32_t hex4(std::string_view digits) {
  if (digits.size() < 4) return -1;
  int32_t value = 0;
  for (const char c : digits.substr(0, 4)) {
    const bool digit = c >= '0' && c <= '9';
    const bool upper = c >= 'A' && c <= 'F';
    const bool lower = c >= 'a' && c <= 'f';
    if (!digit && !upper && !lower) return -1;
    value = 16 * value + (digit ? c - '0' : upper ? c - 'A' + 10 : c - 'a' + 10);
  }
  return value;
}

constexpr char32_t kReplacement = 0xfffd;

}  // namespace

std::optional<std::string> from_json_string(std::string_view inside) {
  std::string text;
  for (std::size_t i = 0; i < inside.size(); ++i) {
    const char c = inside[i];
    if (c == '"' || static_cast<unsigned char>(c) < 0x20) return std::nullopt;
    if (c != '\\') {
      text += c;
      continue;
    }
    if (++i >= inside.size()) return std::nullopt;
    if (inside[i] == '/') {
      text += '/';
      continue;
    }
    if (inside[i] != 'u') {
      const std::size_t which = kLetters.find(inside[i]);
      if (which == std::string_view::npos) return std::nullopt;
      text += kEscaped[which];
      continue;
    }
    const int32_t unit = hex4(inside.substr(i + 1));
    if (unit < 0) return std::nullopt;
    i += 4;
    if (unit < 0xd800 || unit > 0xdfff) {
      append_utf8(text, static_cast<char32_t>(unit));
      continue;
    }
    const int32_t low =
        unit < 0xdc00 && inside.substr(i + 1, 2) == "\\u" ? hex4(inside.substr(i + 3)) : -1;
    if (low < 0xdc00 || low > 0xdfff) {
      append_utf8(text, kReplacement);
      continue;
    }
    append_utf8(text, static_cast<char32_t>(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00)));
    i += 6;
  }
  return text;
}

std::string to_json_string(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    i += static_cast<std::size_t>(c.length);
    const std::size_t which =
        c.value < 0x80 ? kEscaped.find(static_cast<char>(c.value)) : std::string_view::npos;
    if (which != std::string_view::npos) {
      out += '\\';
      out += kLetters[which];
    } else if (c.value >= 0x20 && c.value < 0x7f) {
      out += static_cast<char>(c.value);
    } else if (c.value < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.value));
    } else {
      const uint32_t rest = static_cast<uint32_t>(c.value) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
    }
  }
  return out;
}

}  // namespace reynard::tokenizer
