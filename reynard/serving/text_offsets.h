#pragma once
// Where tokens begin in a text, in characters: the `text_offset` of answers.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::serving {

// Of a text that consists of its tokens' bytes. What no byte ends is a character (U+FFFD), too.
class TextOffsets {
 public:
  TextOffsets() = default;
  // They go on behind so many characters and these bytes of one more.
  TextOffsets(int64_t num_characters, std::string begun)
      : num_characters_(num_characters), unfinished_(std::move(begun)) {}

  // Of the next token: characters before the one that its first byte belongs to.
  int64_t add(std::string_view bytes);

 private:
  int64_t num_characters_ = 0;  // whole ones
  std::string unfinished_;      // bytes behind them
};

// Of the tokens that `text`, which is UTF-8, was made to, by the bytes that each adds. Where a
// tokenizer has normalized the text, these are others than the text's: a token is looked for behind
// the one before it, past blanks that the tokens lack; one that is not there, since its letters
// were replaced, is where the bytes before it end, up to the next one that is.
std::vector<int64_t> offsets_in(std::string_view text, std::span<const std::string> tokens);

}  // namespace reynard::serving
