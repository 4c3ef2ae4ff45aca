#include "reynard/tokenizer/json_escaped.h"

#include "reynard/tokenizer/byte_pair_tokenizer.h"
#include "reynard/tokenizer/json_string.h"
#include "reynard/tokenizer/unicode.h"
#include "reynard/tokenizer/utf8.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace reynard::tokenizer {

namespace {

// Reads up to `most` digits of the base at text[i].
struct Number {
  char32_t value = 0;
  std::size_t num_digits = 0;
};
Number read_number(std::string_view text, std::size_t i, int base, std::size_t most) {
  const char* const begin = text.data() + i;
  const char* const end = begin + std::min(most, text.size() - i);
  uint32_t value = 0;
  const char* const rest = std::from_chars(begin, end, value, base).ptr;
  return {value, static_cast<std::size_t>(rest - begin)};
}

std::string unescaped(std::string_view escaped) {
  if (auto text = from_json_string(escaped)) return *std::move(text);
  return from_unicode_escape(escaped);
}

// The last letter or escape that an escaped text has whole.
struct LastUnit {
  std::size_t begin = 0, end = 0;
  char32_t high = 0;  // half of a surrogate pair whose other one would follow; 0: it is none
};
LastUnit last_unit(std::string_view escaped) {
  LastUnit last;
  while (last.end < escaped.size()) {
    const bool is_escape = escaped[last.end] == '\\';
    const std::size_t size = !is_escape ? 1 : escaped.substr(last.end + 1, 1) == "u" ? 6 : 2;
    if (size > escaped.size() - last.end) break;
    last.begin = last.end;
    last.end += size;
  }
  const std::string_view unit = escaped.substr(last.begin, last.end - last.begin);
  const char32_t code = unit.size() == 6 ? leading_hex(unit.substr(2), 4).value_or(0) : 0;
  if (code >= 0xd800 && code < 0xdc00) last.high = code;
  return last;
}

// Text whose last character may be cut off: without an escape that it ends within, and of a
// surrogate pair that lacks its second half the two bytes that the first one tells.
std::string unescaped_so_far(std::string_view escaped) {
  const LastUnit last = last_unit(escaped);
  if (last.high == 0) return unescaped(escaped.substr(0, last.end));
  std::string character;
  append_utf8(character, 0x10000 + ((last.high - 0xd800) << 10));
  return unescaped(escaped.substr(0, last.begin)) + character.substr(0, 2);
}

}  // namespace

JsonEscapedTokenizer::JsonEscapedTokenizer(std::unique_ptr<Tokenizer> inner, bool add_bos)
    : inner_(std::move(inner)), add_bos_(add_bos && inner_->bos()) {}

std::size_t JsonEscapedTokenizer::safe_prefix(std::string_view text) const {
  // Letters and spaces are not escaped. A newline is: "\n" ends with a letter then.
  if (inner_->safe_prefix("a b") != 1) return 0;
  return last_safe_place(text, SafePlaces::kWordEnds);
}

std::size_t JsonEscapedTokenizer::whole_escapes(std::span<const int64_t> ids,
                                                std::size_t most) const {
  for (; most > 0; --most) {
    const std::string escaped = inner_->decode(ids.first(most));
    const LastUnit last = last_unit(escaped);
    if (last.end == escaped.size() && last.high == 0) break;
  }
  return most;
}

std::vector<int32_t> JsonEscapedTokenizer::encode_text(std::string_view text,
                                                       const EncodeOptions& options) const {
  Utf8Validator validator;
  if (!validator.feed(text) || !validator.finish()) return encode_text(displayable(text), options);
  std::vector<int32_t> ids = inner_->encode(to_json_string(text), options);
  if (add_bos_ && options.add_template) ids.insert(ids.begin(), static_cast<int32_t>(*bos()));
  return ids;
}

std::string JsonEscapedTokenizer::decode_ids(std::span<const int64_t> ids,
                                             const DecodeOptions& options) const {
  const std::string escaped = displayable(inner_->decode(ids, options));
  return options.raw_bytes ? unescaped_so_far(escaped) : unescaped(escaped);
}

std::string from_unicode_escape(std::string_view bytes) {
  constexpr std::string_view letters = "\\'\"abfnrtv";
  constexpr std::string_view characters = "\\'\"\a\b\f\n\r\t\v";
  std::string text;
  for (std::size_t i = 0; i < bytes.size();) {
    const char c = bytes[i++];
    if (c != '\\') {
      append_utf8(text, static_cast<unsigned char>(c));
      continue;
    }
    if (i == bytes.size()) break;
    const char kind = bytes[i];
    if (kind == '\n') {
      ++i;
    } else if (const auto which = letters.find(kind); which != std::string_view::npos) {
      text += characters[which];
      ++i;
    } else if (kind >= '0' && kind <= '7') {
      const Number number = read_number(bytes, i, 8, 3);
      append_utf8(text, number.value);
      i += number.num_digits;
    } else if (kind == 'x' || kind == 'u' || kind == 'U') {
      const std::size_t size = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
      const Number number = read_number(bytes, ++i, 16, size);
      const bool character = number.value < 0x110000;
      const bool surrogate = number.value >= 0xd800 && number.value < 0xe000;
      if (number.num_digits == size && character) {
        append_utf8(text, surrogate ? 0xfffd : number.value);
      }
      i += number.num_digits;
    } else {
      text += '\\';
    }
  }
  return text;
}

}  // namespace reynard::tokenizer
