#include "reynard/report/escape.h"

#include "reynard/config/json_file.h"

#include <nlohmann/json.hpp>

#include <cstdint>

namespace reynard::report {

namespace {

// Length of the valid UTF-8 sequence that begins at i; 0 when it is not valid.
size_t sequence_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) -> uint8_t {
    return k < text.size() ? static_cast<uint8_t>(text[k]) : 0;
  };
  const uint8_t first = byte(i);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first < 0xE0   ? 2
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  for (size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return 0;
  }
  const uint8_t second = byte(i + 1);
  // Overlong forms, surrogates and values past U+10FFFF.
  const bool wrong = (first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
                     (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90);
  return wrong ? 0 : length;
}

std::string_view entity(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    default:
      return {};
  }
}

}  // namespace

std::string html(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 8);
  for (size_t i = 0; i < text.size();) {
    const size_t length = sequence_length(text, i);
    const auto byte = static_cast<uint8_t>(text[i]);
    if (length == 0) {
      escaped += "\xEF\xBF\xBD";  // U+FFFD
    } else if (const std::string_view named = entity(text[i]); !named.empty()) {
      escaped += named;
    } else if (byte < 0x20 && byte != '\n' && byte != '\t') {
      escaped += "\xE2\x90";  // U+2400 + byte
      escaped += static_cast<char>(0x80 + byte);
    } else {
      escaped += text.substr(i, length);
    }
    i += length ? length : 1;
  }
  return escaped;
}

std::string script_json(const nlohmann::json& json) {
  const std::string plain = config::json_text(json);
  std::string safe;
  safe.reserve(plain.size());
  for (const char c : plain) {
    if (c == '<') {
      safe += "\\u003c";  // only strings can hold it
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string shell_word(std::string_view word) {
  static constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(word);
  }
  std::string text = "'";
  for (const char c : word) {
    if (c == '\'') {
      text += "'\\''";
    } else {
      text += c;
    }
  }
  text += '\'';
  return text;
}

}  // namespace reynard::report
