#pragma once
// Learns a byte-level BPE vocabulary (Sennrich et al. 2016): text is split into pieces, and the
// pair of neighbouring tokens that is most frequent in all pieces is joined to a new token, again
// and again. The same counts give the same vocabulary, whatever order or threads they came from.

#include "reynard/tokenizer/split_pattern.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace reynard::tokenizer {

// How often each piece of a text occurs.
class PieceCounts {
 public:
  explicit PieceCounts(SplitPattern pattern) : pattern_(pattern) {}

  // text: valid UTF-8; its beginning and end are taken for ends of pieces (see last_word_end).
  void add(std::string_view text);
  void add(const PieceCounts& other);

  SplitPattern pattern() const { return pattern_; }
  std::size_t num_pieces() const { return counts_.size(); }
  // In an order that depends on the contents only: frequent ones first.
  std::vector<std::pair<std::string_view, int64_t>> sorted() const;

 private:
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };
  SplitPattern pattern_;
  std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>> counts_;
  std::vector<std::string_view> pieces_;  // of one call of add()
};

// Pairs of ids in the order in which they are joined: ids 0 to 255 are the bytes in the order of
// GPT-2's alphabet, 256 + i is what pair i becomes.
using Merges = std::vector<std::pair<int32_t, int32_t>>;

struct LearnOptions {
  int64_t num_merges = 0;  // at most; fewer where pairs run out
  int64_t min_count = 2;   // pairs that occur less often are not joined
  // Called from time to time with the number of merges so far and of all that are wanted.
  std::function<void(int64_t done, int64_t all)> progress = {};
};
// Of equally frequent pairs the one with the smaller ids is joined first, as in the package
// `tokenizers`.
Merges learn_merges(const PieceCounts& counts, const LearnOptions& options);

// Throws reynard::Error, naming it, for a special token that is not UTF-8 or is a token of a byte
// in every vocabulary: a character of GPT-2's alphabet.
void check_special_tokens(const std::vector<std::string>& special_tokens);

// The contents of a tokenizer.json. special_tokens get the last ids. Throws reynard::Error for
// those that are tokens of a byte or of the merges.
std::string bpe_tokenizer_json(const Merges& merges,
                               SplitPattern pattern,
                               const std::vector<std::string>& special_tokens);

}  // namespace reynard::tokenizer
