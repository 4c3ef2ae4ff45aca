#include "reynard/jinja/letters.h"

#include "reynard/jinja/value.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace reynard::jinja {

namespace {

using Code = utf8proc_int32_t;

void append(std::string& out, Code code) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto size = static_cast<std::size_t>(utf8proc_encode_char(code, bytes.data()));
  append_text(out, std::string_view(reinterpret_cast<const char*>(bytes.data()), size));
}

// Appends what change(code, out) makes of each character.
template <class Change>
std::string changed(std::string_view text, const Change& change) {
  std::string out;
  while (!text.empty()) {
    Code code = -1;
    const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()),
                                       &code);
    if (size > 0) {
      change(code, out);
    } else {
      append_text(out, text.substr(0, 1));
    }
    text.remove_prefix(size > 0 ? static_cast<std::size_t>(size) : 1);
  }
  return out;
}

[[noreturn]] void refuse(const char* what, Code code) {
  std::string letter;
  append(letter, code);
  throw Error(fmt::format("{}: the case of {:?} is not supported", what, letter));
}

// Small letters that several capital ones stand for: those of what they are folded to.
struct Folded {
  std::array<Code, 4> codes{};
  std::size_t size = 0;
};
Folded several_letters(Code code) {
  if (code < 0x80 || utf8proc_category(code) == UTF8PROC_CATEGORY_LU) return {};
  Folded folded;
  int last_class = 0;
  const auto size = utf8proc_decompose_char(code,
                                            folded.codes.data(),
                                            static_cast<utf8proc_ssize_t>(folded.codes.size()),
                                            UTF8PROC_CASEFOLD,
                                            &last_class);
  folded.size = size > 1 ? static_cast<std::size_t>(size) : 0;
  return folded;
}

Code small(Code code) {
  constexpr Code kDottedI = 0x130, kSigma = 0x3a3;
  if (code == kDottedI || code == kSigma) refuse("lower", code);
  return utf8proc_tolower(code);
}

Code capital(Code code) {
  const Code title = utf8proc_totitle(code);
  // Of what has no title case of its own Python writes several letters.
  if (several_letters(code).size > 0 && utf8proc_category(title) != UTF8PROC_CATEGORY_LT) {
    refuse("capitalize", code);
  }
  return title;
}

bool is_letter_of_a_word(Code code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    case UTF8PROC_CATEGORY_LM:
      refuse("title", code);
    default:
      break;
  }
  const bool is_ordinal = code == 0xaa || code == 0xba;
  const bool is_enclosed = code >= 0x1f130 && code <= 0x1f189;
  if (is_ordinal || is_enclosed) refuse("title", code);
  return utf8proc_toupper(code) != code || utf8proc_tolower(code) != code;
}

}  // namespace

std::string_view first_character(std::string_view text) {
  std::size_t size = 1;
  const bool is_long = (text[0] & 0x80) != 0;
  while (is_long && size < std::min<std::size_t>(4, text.size()) && (text[size] & 0xc0) == 0x80) {
    ++size;
  }
  return text.substr(0, size);
}

std::string_view last_character(std::string_view text) {
  std::size_t size = 1;
  while (size < std::min<std::size_t>(4, text.size()) &&
         (text[text.size() - size] & 0xc0) == 0x80) {
    ++size;
  }
  return text.substr(text.size() - size);
}

bool is_blank(std::string_view character) {
  constexpr std::u32string_view kWide =
      U"\u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
      U"\u2028\u2029\u202f\u205f\u3000";
  Code code = -1;
  const auto size = static_cast<utf8proc_ssize_t>(character.size());
  const auto* const bytes = reinterpret_cast<const utf8proc_uint8_t*>(character.data());
  if (utf8proc_iterate(bytes, size, &code) != size) return false;
  return (code >= '\t' && code <= '\r') || (code >= 0x1c && code <= ' ') ||
         kWide.find(static_cast<char32_t>(code)) != std::u32string_view::npos;
}

std::string_view without_blanks_before(std::string_view text) {
  while (!text.empty() && is_blank(first_character(text))) {
    text.remove_prefix(first_character(text).size());
  }
  return text;
}

std::string_view without_blanks_behind(std::string_view text) {
  while (!text.empty() && is_blank(last_character(text))) {
    text.remove_suffix(last_character(text).size());
  }
  return text;
}

std::string upper_case(std::string_view text) {
  return changed(text, [](Code code, std::string& out) {
    const Folded several = several_letters(code);
    if (several.size == 0) return append(out, utf8proc_toupper(code));
    for (const Code part : std::span(several.codes).first(several.size)) {
      append(out, utf8proc_toupper(part));
    }
  });
}

std::string lower_case(std::string_view text) {
  return changed(text, [](Code code, std::string& out) { append(out, small(code)); });
}

std::string capitalized(std::string_view text, Capitals capitals) {
  bool begins = true;
  return changed(text, [&](Code code, std::string& out) {
    append(out, begins ? capital(code) : small(code));
    begins = capitals == Capitals::kWords && !is_letter_of_a_word(code);
  });
}

std::string with_ascii_digits(std::string_view text) {
  const auto is_digit = [](Code code) { return utf8proc_category(code) == UTF8PROC_CATEGORY_ND; };
  return changed(text, [&](Code code, std::string& out) {
    if (!is_digit(code)) return append(out, code);
    // Digits of a script stand in order, and scripts that adjoin have ten each.
    Code before = 0;
    while (is_digit(code - before - 1)) ++before;
    append(out, '0' + before % 10);
  });
}

}  // namespace reynard::jinja
