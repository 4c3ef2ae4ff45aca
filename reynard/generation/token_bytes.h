#pragma once
// The bytes that tokens add to a text. They need not be whole characters; what becomes of those is
// in text_stream.h.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace reynard::tokenizer {
class Tokenizer;
}

namespace reynard::generation {

class TokenBytes {
 public:
  // keep_special: special tokens as their names, else as nothing. before: the tokens that the text
  // goes on from, if it does: a blank that it begins with is then part of it. The tokenizer must
  // outlive it.
  TokenBytes(const tokenizer::Tokenizer& tokenizer,
             bool keep_special,
             std::span<const int64_t> before = {});

  // Of the next token. An id that the tokenizer does not know (a padded vocabulary) adds nothing.
  std::string add(int64_t token);

 private:
  bool has_text(int64_t token) const;
  void shorten_window();

  const tokenizer::Tokenizer* tokenizer_;
  bool keep_special_;
  std::vector<int64_t> window_;  // the newest tokens, on which the text of the next may depend
};

// The bytes that a token adds behind other text, special tokens as their names: alone it may lose
// the blank that it begins with. An id that the tokenizer does not know adds nothing.
std::string text_of_token(const tokenizer::Tokenizer& tokenizer, int64_t token);

}  // namespace reynard::generation
