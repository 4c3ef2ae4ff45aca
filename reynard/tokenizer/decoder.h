#pragma once
// How tokens become text again: the decoders of tokenizer.json.

#include "reynard/tokenizer/regex.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace reynard::tokenizer {

struct DecodeByteLevel {};     // characters of the byte alphabet -> bytes; then one text
struct DecodeByteFallback {};  // runs of "<0x41>" -> bytes; U+FFFD each where they are not UTF-8
struct DecodeFuse {};          // one text
struct DecodeReplaceText {
  std::string from;  // not empty
  std::string to;
};
struct DecodeReplace {
  Regex from;
  std::string to;
};
struct DecodeStrip {
  std::string content;  // one character
  int64_t start = 0;    // at most so many of it are taken from the beginning of each token
  int64_t stop = 0;     // and from its end
};
struct DecodeMetaspace {
  std::string replacement;
  bool drop_first = true;  // the mark that was put before the text
};
using DecoderStep = std::variant<DecodeByteLevel,
                                 DecodeByteFallback,
                                 DecodeFuse,
                                 DecodeReplaceText,
                                 DecodeReplace,
                                 DecodeStrip,
                                 DecodeMetaspace>;

class Decoder {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::move(step));
  }
  // Without steps: the tokens behind each other. raw_bytes: bytes that are not UTF-8 stay.
  std::string decode(std::vector<std::string> tokens, bool raw_bytes) const;

 private:
  std::vector<DecoderStep> steps_;
};

// The byte of a token like "<0x41>"; -1 for others.
int byte_of_token(std::string_view token);

}  // namespace reynard::tokenizer
