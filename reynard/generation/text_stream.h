#pragma once
// Tokens to text as they come: a piece is handed out once later tokens can no longer change it,
// that is when it ends no character in the middle and no stop string may begin in it. Bytes that
// are no character become one U+FFFD for each maximal part of one. Decoding all of the tokens,
// where the vocabulary falls back to bytes, has one for each byte, and with one bad byte for all
// bytes beside it: that would take back characters that were handed out.

#include "reynard/generation/token_bytes.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace reynard::generation {

struct TextStreamOptions {
  std::vector<std::string> stop = {};  // the text ends before the first of them
  std::string begun = {};              // of a character that the first tokens end
};

class TextStream {
 public:
  // before: the tokens that the text goes on from, if it does: a blank that it begins with is then
  // part of it. The tokenizer must outlive it. Throws reynard::Error for an empty stop string.
  TextStream(const tokenizer::Tokenizer& tokenizer,
             TextStreamOptions options,
             std::span<const int64_t> before = {});

  // The text that became certain with this token; "" is common. Ids that the tokenizer does not
  // know (a padded vocabulary) have no text.
  std::string add(int64_t token);
  // What was held back; an unfinished character becomes U+FFFD.
  std::string finish();
  // A stop string was found: the text ends before it, and later tokens add nothing.
  bool is_stopped() const { return stopped_; }

 private:
  std::string release(std::size_t bytes);
  std::size_t find_stop() const;
  std::size_t num_certain() const;

  TokenBytes bytes_;
  TextStreamOptions options_;
  std::string held_;  // text that is not handed out yet
  bool stopped_ = false;
};

}  // namespace reynard::generation
