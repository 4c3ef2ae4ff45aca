#pragma once
// UTF-8 validation (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF) over text
// that arrives in pieces, and repair for display.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace reynard::tokenizer {

class Utf8Validator {
 public:
  // Takes the next bytes of the text. false: they are not UTF-8; position() is the offset of the
  // first byte of the bad sequence. Nothing may be fed after that.
  bool feed(std::string_view bytes);
  // false: the text ends inside a character, which begins at position().
  bool finish() const { return missing_ == 0; }
  int64_t position() const { return missing_ > 0 || failed_ ? begin_ : seen_; }

 private:
  bool start(unsigned char byte);

  int64_t seen_ = 0;   // bytes taken
  int64_t begin_ = 0;  // offset of the character being read
  int missing_ = 0;    // continuation bytes to come
  bool failed_ = false;
  unsigned char low_ = 0x80;  // allowed range of the next continuation byte
  unsigned char high_ = 0xbf;
};

bool is_utf8(std::string_view text);

// Bytes before the character that the text ends in the middle of, all of them where it does not.
std::size_t whole_characters(std::string_view text);
// Characters of UTF-8.
int64_t num_characters(std::string_view text);
// The text up to its first `count` characters, all of it where it has no more.
std::string_view first_characters(std::string_view text, int64_t count);

// The text with every invalid sequence replaced by U+FFFD (one per maximal part, as Unicode
// advises).
std::string displayable(std::string_view bytes);

}  // namespace reynard::tokenizer
