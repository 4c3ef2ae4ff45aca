#include "reynard/config/fields.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdint>

namespace reynard::config {

std::string key(std::string_view path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}

namespace {

struct Character {
  uint32_t code;
  size_t bytes;
};

// The UTF-8 character that begins at i; a byte that begins none stands for itself.
Character character_at(std::string_view text, size_t i) {
  const auto byte = static_cast<uint8_t>(text[i]);
  const size_t bytes = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  if (bytes == 1 || bytes > text.size() - i) return {byte, 1};
  uint32_t code = byte & (0xFFu >> (bytes + 1));
  for (size_t k = 1; k < bytes; ++k) {
    const auto next = static_cast<uint8_t>(text[i + k]);
    if ((next & 0xC0) != 0x80) return {byte, 1};
    code = code << 6 | (next & 0x3Fu);
  }
  return {code, bytes};
}

// What ends a line, begins an escape sequence or turns the direction of text around.
bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x061C ||
         (code >= 0x200E && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto [code, bytes] = character_at(text, i);
    if (is_control(code)) {
      out += bytes == 1 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
    } else {
      out += text.substr(i, bytes);
    }
    i += bytes;
  }
  return out;
}

void Problems::add(std::string_view where, std::string_view path, std::string_view message) {
  // An override names its key itself: "--model.num_heads = 0; must be > 0".
  const bool names_key = where.starts_with("--");
  std::string line(where);
  if (!where.empty() && !(names_key && !path.empty())) line += ": ";
  if (!path.empty()) line += names_key ? " " : fmt::format("{} ", path);
  line += message;
  // Two keys of ours may be one of the file.
  const std::string shown = printable(line);
  if (std::ranges::find(lines_, shown) == lines_.end()) lines_.push_back(shown);
}

namespace {

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

}  // namespace

bool Problems::names_unread(std::string_view path, std::string_view message) const {
  return std::any_of(unread_.begin(), unread_.end(), [&](const std::string& unread) {
    if (path == unread) return true;
    const std::string_view name = std::string_view(unread).substr(unread.rfind('.') + 1);
    for (size_t at = message.find(name); at != std::string_view::npos;
         at = message.find(name, at + 1)) {
      const size_t end = at + name.size();
      if ((at == 0 || !is_name(message[at - 1])) &&
          (end == message.size() || !is_name(message[end]))) {
        return true;
      }
    }
    return false;
  });
}

// Keys are replaced in full, or by their last word where that is no word of a sentence
// ("num_heads").
std::string Problems::with_names_of_file(std::string_view text) const {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && (is_name(text[end]) || text[end] == '.')) ++end;
    const std::string_view word = text.substr(at, std::max<std::size_t>(end - at, 1));
    const auto named = std::ranges::find_if(names_, [&](const auto& entry) {
      const std::string& path = entry.first;
      return word == path ||
             (word.find('_') != word.npos && word == path.substr(path.rfind('.') + 1));
    });
    out += named == names_.end() ? word : std::string_view(named->second);
    at += word.size();
  }
  return out;
}

void Problems::add(std::string_view path, std::string_view message) {
  if (names_unread(path, message)) return;
  const auto seen =
      std::find_if(seen_.rbegin(), seen_.rend(), [&](const Seen& s) { return s.path == path; });
  const std::string name = with_names_of_file(path), said = with_names_of_file(message);
  if (seen == seen_.rend()) {
    add(source_, {}, path.empty() ? said : fmt::format("{}: {}", name, said));
  } else if (seen->where.empty()) {
    add(source_, name, fmt::format("= {} (default); {}", seen->value, said));
  } else {
    add(seen->where, name, fmt::format("= {}; {}", seen->value, said));
  }
}

void Problems::throw_if_any() const {
  if (!lines_.empty()) throw Error(fmt::format("{}", fmt::join(lines_, "\n")));
}

void Problems::set_value(std::string path, std::string where, std::string value) {
  seen_.push_back({std::move(path), std::move(where), std::move(value)});
}

}  // namespace reynard::config
