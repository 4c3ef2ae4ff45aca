#include "reynard/tokenizer/unicode_form.h"

#include "reynard/tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

namespace reynard::tokenizer {

namespace {

// Characters of Unicode 10 to 15 that decompose, combine or are part of a composition.
constexpr std::pair<char32_t, char32_t> kLater[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
    {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x107ba}, {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943},
    {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
    {0x11d42, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
    {0x1e030, 0x1e06d}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
    {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};

bool is_later(char32_t c) {
  if (c < kLater[0].first) return false;
  if (std::any_of(std::begin(kLater), std::end(kLater), [&](const auto& range) {
        return c >= range.first && c <= range.second;
      })) {
    return true;
  }
  const auto added = characters_since_unicode_14();
  return std::any_of(added.begin(), added.end(), [&](const CharRange& range) {
    return c >= range.first && c <= range.last;
  });
}

// Below these characters every text is in its form already.
bool is_normal(std::string_view text, UnicodeForm form) {
  const unsigned char lead = form == UnicodeForm::kNfc ? 0xcc /* U+0300 */ : 0x80;
  return std::all_of(
      text.begin(), text.end(), [&](char c) { return static_cast<unsigned char>(c) < lead; });
}

void append_form(std::string& out, std::string_view text, UnicodeForm form) {
  if (text.empty()) return;
  int options = UTF8PROC_STABLE;
  const bool composed = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  options |= composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()),
                                             &mapped,
                                             static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(mapped, std::free);
  if (size < 0) throw std::bad_alloc();
  out.append(reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size));
}

}  // namespace

std::string to_form(std::string_view text, UnicodeForm form) {
  if (is_normal(text, form)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    const auto length = static_cast<std::size_t>(c.length);
    if (is_later(c.value)) {  // nothing reorders or composes across it
      append_form(out, text.substr(done, i - done), form);
      out += text.substr(i, length);
      done = i + length;
    }
    i += length;
  }
  append_form(out, text.substr(done), form);
  return out;
}

}  // namespace reynard::tokenizer
