#pragma once
// Tokens that are found in the text as they are, before anything is split: "<|endoftext|>", "<s>".

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace reynard::tokenizer {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the spaces before it
  bool rstrip = false;       // takes the spaces behind it
  bool normalized = false;   // looked for in normalized text, in its normalized form
  bool special = false;      // decoding can leave it out
};

// Finds the leftmost, of these the longest, occurrences of a set of tokens.
class TokenFinder {
 public:
  // `text` is what to look for (a token's content, or its normalized form).
  void add(const std::string& text, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // Cuts the text into what is between the tokens (id -1) and tokens, from left to right.
  void split(std::string_view text,
             const std::function<void(std::string_view part, int32_t id)>& part) const;

  // The tokens are found alike when the text is cut behind a letter and before a space, which may
  // be written as another character.
  bool keeps_word_ends(std::string_view space = " ") const;
  // ... and when it is cut behind a newline and before what is no space.
  bool keeps_newlines() const;

 private:
  struct Found {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::size_t token = 0;
  };
  std::optional<Found> find(std::string_view text, std::size_t from) const;

  struct Entry {
    std::string text;
    AddedToken token;
  };
  // A tree of the tokens' bytes. Most nodes have one child, which needs no look-up: "▁<s>" then
  // costs a few comparisons at each word.
  struct Node {
    int32_t token = -1;  // that ends here
    uint32_t num_children = 0;
    uint32_t child = 0;  // the first child and its byte
    unsigned char byte = 0;
  };
  static constexpr uint32_t kNone = ~uint32_t{0};
  uint32_t child_of(uint32_t node, char byte) const;

  std::vector<Entry> tokens_;
  std::vector<Node> nodes_ = {Node{}};
  std::unordered_map<uint64_t, uint32_t> more_children_;  // by node << 8 | byte: all but the first
  bool first_bytes_[256] = {};
};

}  // namespace reynard::tokenizer
