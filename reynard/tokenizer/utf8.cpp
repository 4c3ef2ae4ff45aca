#include "reynard/tokenizer/utf8.h"

#include <algorithm>
#include <cstring>

namespace reynard::tokenizer {

bool Utf8Validator::start(unsigned char byte) {
  begin_ = seen_;
  low_ = 0x80;
  high_ = 0xbf;
  if (byte < 0x80) return true;
  if (byte >= 0xc2 && byte <= 0xdf) {
    missing_ = 1;
  } else if (byte >= 0xe0 && byte <= 0xef) {
    missing_ = 2;
    if (byte == 0xe0) low_ = 0xa0;   // shorter forms exist
    if (byte == 0xed) high_ = 0x9f;  // surrogates
  } else if (byte >= 0xf0 && byte <= 0xf4) {
    missing_ = 3;
    if (byte == 0xf0) low_ = 0x90;   // shorter forms exist
    if (byte == 0xf4) high_ = 0x8f;  // above U+10FFFF
  } else {
    return false;
  }
  return true;
}

bool Utf8Validator::feed(std::string_view bytes) {
  if (failed_) return false;
  for (std::size_t i = 0; i < bytes.size();) {
    if (missing_ == 0) {  // eight ASCII bytes at a time
      uint64_t word = 0;
      while (bytes.size() - i >= 8) {
        std::memcpy(&word, bytes.data() + i, 8);
        if (word & 0x8080808080808080U) break;
        i += 8;
        seen_ += 8;
      }
      if (i == bytes.size()) break;
    }
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (missing_ == 0) {
      failed_ = !start(byte);
    } else if (byte < low_ || byte > high_) {
      failed_ = true;
    } else {
      --missing_;
      low_ = 0x80;
      high_ = 0xbf;
    }
    if (failed_) return false;
    ++i;
    ++seen_;
  }
  return true;
}

bool is_utf8(std::string_view text) {
  Utf8Validator validator;
  return validator.feed(text) && validator.finish();
}

std::size_t whole_characters(std::string_view text) {
  // A character has at most four bytes: the last lead byte tells.
  for (std::size_t back = 1; back <= std::min<std::size_t>(text.size(), 3); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xc0U) == 0x80U) continue;
    const std::size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

namespace {

bool begins_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
}

}  // namespace

int64_t num_characters(std::string_view text) {
  return std::ranges::count_if(text, begins_character);
}

std::string_view first_characters(std::string_view text, int64_t count) {
  const auto end =
      std::ranges::find_if(text, [&](char c) { return begins_character(c) && count-- == 0; });
  return {text.begin(), end};
}

std::string displayable(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    Utf8Validator validator;
    std::size_t good = 0;
    std::size_t bad = 0;
    if (validator.feed(bytes)) {
      good = static_cast<std::size_t>(validator.position());
      bad = bytes.size() - good;  // a character that is cut off
    } else {
      good = static_cast<std::size_t>(validator.position());
      bad = 1;
      Utf8Validator part;  // the longest prefix that could still become a character
      while (good + bad < bytes.size() && part.feed(bytes.substr(good + bad - 1, 1)) &&
             !part.finish()) {
        Utf8Validator next = part;
        if (!next.feed(bytes.substr(good + bad, 1))) break;
        ++bad;
      }
    }
    out += bytes.substr(0, good);
    if (bad > 0) out += "\xef\xbf\xbd";
    bytes.remove_prefix(good + bad);
  }
  return out;
}

}  // namespace reynard::tokenizer
