#include "reynard/tokenizer/json_string.h"

#include "reynard/tokenizer/unicode.h"

#include <fmt/format.h>

namespace reynard::tokenizer {

namespace {

constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
constexpr std::string_view kLetters = "\"\\bfnrt";
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
    const std::optional<char32_t> unit = leading_hex(inside.substr(i + 1), 4);
    if (!unit) return std::nullopt;
    i += 4;
    if (*unit < 0xd800 || *unit > 0xdfff) {
      append_utf8(text, *unit);
      continue;
    }
    const bool pairs = *unit < 0xdc00 && inside.substr(i + 1, 2) == "\\u";
    const char32_t low = pairs ? leading_hex(inside.substr(i + 3), 4).value_or(0) : 0;
    if (low < 0xdc00 || low > 0xdfff) {
      append_utf8(text, kReplacement);
      continue;
    }
    append_utf8(text, 0x10000 + ((*unit - 0xd800) << 10) + (low - 0xdc00));
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
