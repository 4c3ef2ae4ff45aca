#pragma once
// How text is split into the pieces that byte-pair encoding works on: the pre-tokenizers of
// tokenizer.json. Pieces are bytes of the text: what ByteLevel writes as "Ġ" is a space here.

#include "reynard/tokenizer/regex.h"
#include "reynard/tokenizer/split_pattern.h"

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace reynard::tokenizer {

enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct PrefixSpace {};  // a space before pieces that begin with none
struct FamilySplit {
  SplitPattern pattern = SplitPattern::kGpt2;
};
struct RegexSplit {
  Regex regex;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the pattern describes what is between matches
};
struct DigitSplit {
  bool each = false;
};
struct MetaspaceSplit {
  enum class Prepend { kAlways, kFirst, kNever };
  std::string replacement;
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};
using PreTokenizerStep =
    std::variant<PrefixSpace, FamilySplit, RegexSplit, DigitSplit, MetaspaceSplit>;

// Texts that were changed on the way; pieces point into them. Each has PieceCache::kPadding bytes
// behind it.
class TextStore {
 public:
  std::string_view keep(std::string_view text);
  void clear() { texts_.clear(); }

 private:
  std::deque<std::string> texts_;
};

class PreTokenizer {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::move(step));
  }

  // Replaces the contents of `pieces`. at_begin: the text is at the beginning of all text.
  void split(std::string_view text,
             bool at_begin,
             TextStore& store,
             std::vector<std::string_view>& pieces) const;

  // What it makes of a piece depends on whether it begins all text.
  bool marks_begin() const;
  // Splitting never joins what is on both sides of a letter before a space, nor looks across.
  bool keeps_word_ends() const;
  // It splits there (metaspace: "▁" instead of the space).
  bool splits_at_word_ends(bool metaspace) const;
  bool splits_after_newlines() const;

 private:
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace reynard::tokenizer
