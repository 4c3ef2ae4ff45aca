#pragma once
// What is done to text before it is split: the normalizers of tokenizer.json.

#include "reynard/tokenizer/regex.h"
#include "reynard/tokenizer/unicode_form.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace reynard::tokenizer {

struct PrependText {
  std::string text;  // before text that is not empty
};
struct ReplaceText {
  std::string from;  // not empty
  std::string to;
};
struct ReplaceMatches {
  Regex from;
  std::string to;
};
struct StripSpaces {
  bool left = false;
  bool right = false;
};
using NormalizerStep =
    std::variant<PrependText, ReplaceText, ReplaceMatches, UnicodeForm, StripSpaces>;

class Normalizer {
 public:
  template <class Step>
  void add(Step step) {
    steps_.emplace_back(std::move(step));
  }
  bool empty() const { return steps_.empty(); }

  // continues: the text goes on behind other text, so nothing is put before it.
  std::string apply(std::string_view text, bool continues = false) const;

  // Normalizing both parts of a text that is cut behind a letter and before a space gives the parts
  // of the normalized text; letters and spaces are what they were, but for "▁" in place of spaces.
  bool keeps_word_ends() const;
  // The same of a text that is cut behind a newline, where keeps_word_ends().
  bool keeps_newlines() const;
  bool writes_metaspace() const;
  // What a space behind a letter becomes, " " or "▁"; nothing where what follows it decides that.
  std::optional<std::string_view> space() const;
  // The first character of a text, or what is written for it, stays the first.
  bool keeps_begin() const;

 private:
  std::vector<NormalizerStep> steps_;
};

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);
std::string replace_all(std::string_view text, const Regex& from, std::string_view to);

}  // namespace reynard::tokenizer
