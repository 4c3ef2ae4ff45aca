// The metrics of LongBench, equal to the published ones down to their quirks.

#include "reynard/evaluation/longbench.h"
#include "reynard/evaluation/prompt_task.h"
#include "reynard/tokenizer/unicode.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace reynard::evaluation {

namespace {

using tokenizer::code_point_at;

// Like Python's str.split(): at runs of white space.
std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  for (size_t i = 0; i < text.size();) {
    const auto [c, length] = code_point_at(text, i);
    if (!tokenizer::is_space(c)) {
      word += text.substr(i, length);
    } else if (!word.empty()) {
      words.push_back(std::move(word));
      word.clear();
    }
    i += length;
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

bool is_ascii_punctuation(char c) {
  return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') ||
         (c > 'z' && c < 0x7f);
}

// Lower case, without ASCII punctuation, without the words a, an and the.
std::vector<std::string> answer_words(const std::string& text) {
  std::string plain = lower_case(text);
  std::erase_if(plain, is_ascii_punctuation);
  std::string without;
  for (size_t i = 0; i < plain.size();) {
    size_t end = i;
    while (end < plain.size()) {
      const auto [c, length] = code_point_at(plain, end);
      if (!tokenizer::is_word(c)) break;
      end += length;
    }
    if (end == i) {  // between words
      end += code_point_at(plain, i).length;
      without += plain.substr(i, end - i);
    } else {
      const std::string word = plain.substr(i, end - i);
      without += word == "a" || word == "an" || word == "the" ? " " : word;
    }
    i = end;
  }
  return split_words(without);
}

double f1(const std::string& written, const std::string& answer) {
  const std::vector<std::string> words = answer_words(written);
  const std::vector<std::string> expected = answer_words(answer);
  std::map<std::string, int64_t> left;
  for (const std::string& word : expected) ++left[word];
  int64_t same = 0;
  for (const std::string& word : words) {
    const auto found = left.find(word);
    if (found != left.end() && found->second-- > 0) ++same;
  }
  if (same == 0) return 0;
  const double precision = static_cast<double>(same) / static_cast<double>(words.size());
  const double recall = static_cast<double>(same) / static_cast<double>(expected.size());
  return 2 * precision * recall / (precision + recall);
}

using Sentence = std::vector<std::string>;

// Sentences end at full stops; of one that is only white space an empty word is left.
std::vector<Sentence> sentences_of(const std::string& text) {
  std::vector<Sentence> sentences;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    if (end > begin) {
      Sentence words = split_words(std::string_view(text).substr(begin, end - begin));
      if (words.empty()) words.emplace_back();
      sentences.push_back(std::move(words));
    }
    begin = end + 1;
  }
  return sentences;
}

// Adds the words of a longest common subsequence. Of several, the one that is read backwards with
// the second sentence given up first, as published: it decides which words are counted.
void add_common(const Sentence& a, const Sentence& b, std::set<std::string>& words) {
  const size_t width = b.size() + 1;
  std::vector<int32_t> longest((a.size() + 1) * width);
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      longest[i * width + j] =
          a[i - 1] == b[j - 1] ? longest[(i - 1) * width + j - 1] + 1
                               : std::max(longest[(i - 1) * width + j], longest[i * width + j - 1]);
    }
  }
  size_t i = a.size();
  size_t j = b.size();
  while (i > 0 && j > 0) {
    if (a[i - 1] == b[j - 1]) {
      words.insert(a[i - 1]);
      --i;
      --j;
    } else if (longest[(i - 1) * width + j] > longest[i * width + j - 1]) {
      --i;
    } else {
      --j;
    }
  }
}

// ROUGE-L of summaries in the package `rouge`: distinct words of the union over sentence pairs.
double rouge_l(const std::string& written, const std::string& answer) {
  const std::vector<Sentence> summary = sentences_of(written);
  const std::vector<Sentence> reference = sentences_of(answer);
  if (summary.empty() || reference.empty()) return 0;
  const auto distinct = [](const std::vector<Sentence>& sentences) {
    std::set<std::string> words;
    for (const Sentence& sentence : sentences) words.insert(sentence.begin(), sentence.end());
    return static_cast<double>(words.size());
  };
  std::set<std::string> common;
  for (const Sentence& r : reference) {
    for (const Sentence& s : summary) add_common(r, s, common);
  }
  const double recall = static_cast<double>(common.size()) / distinct(reference);
  const double precision = static_cast<double>(common.size()) / distinct(summary);
  return 2 * precision * recall / (precision + recall + 1e-8);
}

// One over the number of classes that are named, when the right one is among them. Classes that are
// a part of the right one do not count; the published loop leaves out the one behind each of those.
double class_share(const std::string& written,
                   const std::string& answer,
                   const std::vector<std::string>& classes) {
  std::vector<std::string> named;
  for (const std::string& name : classes) {
    if (written.find(name) != std::string::npos) named.push_back(name);
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const std::string name = named[i];
    if (name == answer || answer.find(name) == std::string::npos) continue;
    named.erase(std::find(named.begin(), named.end(), name));
  }
  const bool right = std::find(named.begin(), named.end(), answer) != named.end();
  return right ? 1 / static_cast<double>(named.size()) : 0;
}

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  for (size_t i = 0; i < text.size();) {
    const auto [c, length] = code_point_at(text, i);
    characters += c;
    i += length;
  }
  return characters;
}

// Characters in the matching blocks of Ratcliff and Obershelp as Python's difflib finds them: the
// longest common block, the earliest of several, then the same to its left and right.
class MatchingBlocks {
 public:
  MatchingBlocks(std::u32string a, std::u32string b) : a_(std::move(a)), b_(std::move(b)) {
    for (size_t j = 0; j < b_.size(); ++j) places_[b_[j]].push_back(j);
    // In long texts characters of more than one in a hundred are not looked for.
    if (b_.size() < 200) return;
    std::erase_if(places_,
                  [&](const auto& entry) { return entry.second.size() > b_.size() / 100 + 1; });
  }
  size_t matched() const { return matched(0, a_.size(), 0, b_.size()); }

 private:
  struct Block {
    size_t a = 0, b = 0, size = 0;
  };
  Block longest(size_t a_begin, size_t a_end, size_t b_begin, size_t b_end) const {
    Block best{a_begin, b_begin, 0};
    std::map<size_t, size_t> ending;  // at each place of b: size of the block that ends there
    for (size_t i = a_begin; i < a_end; ++i) {
      std::map<size_t, size_t> here;
      const auto places = places_.find(a_[i]);
      for (const size_t j : places == places_.end() ? kNowhere : places->second) {
        if (j < b_begin) continue;
        if (j >= b_end) break;
        const auto before = j > 0 ? ending.find(j - 1) : ending.end();
        const size_t size = here[j] = (before == ending.end() ? 0 : before->second) + 1;
        if (size > best.size) best = {i + 1 - size, j + 1 - size, size};
      }
      ending = std::move(here);
    }
    while (best.a > a_begin && best.b > b_begin && a_[best.a - 1] == b_[best.b - 1]) {
      best = {best.a - 1, best.b - 1, best.size + 1};
    }
    while (best.a + best.size < a_end && best.b + best.size < b_end &&
           a_[best.a + best.size] == b_[best.b + best.size]) {
      ++best.size;
    }
    return best;
  }
  size_t matched(size_t a_begin, size_t a_end, size_t b_begin, size_t b_end) const {
    const Block block = longest(a_begin, a_end, b_begin, b_end);
    if (block.size == 0) return 0;
    return block.size + matched(a_begin, block.a, b_begin, block.b) +
           matched(block.a + block.size, a_end, block.b + block.size, b_end);
  }

  inline static const std::vector<size_t> kNowhere;
  std::u32string a_, b_;
  std::map<char32_t, std::vector<size_t>> places_;
};

// fuzz.ratio of the package fuzzywuzzy: a whole number of hundredths.
double similarity(const std::string& written, const std::string& answer) {
  if (written == answer) return 1;
  if (written.empty() || answer.empty()) return 0;
  const std::u32string a = characters_of(written);
  const std::u32string b = characters_of(answer);
  const double ratio = 2 * static_cast<double>(MatchingBlocks(a, b).matched()) /
                       static_cast<double>(a.size() + b.size());
  return std::nearbyint(100 * ratio) / 100;
}

// The first line that is neither comment nor Markdown.
std::string code_line(const std::string& written) {
  size_t begin = std::min(written.find_first_not_of('\n'), written.size());
  while (begin <= written.size()) {
    const size_t end = std::min(written.find('\n', begin), written.size());
    const std::string line = written.substr(begin, end - begin);
    if (line.find_first_of("`#") == std::string::npos && line.find("//") == std::string::npos) {
      return line;
    }
    begin = end + 1;
  }
  return "";
}

}  // namespace

double longbench_score(LongbenchMetric metric,
                       const std::string& written,
                       const std::string& answer,
                       const std::vector<std::string>& classes) {
  switch (metric) {
    case LongbenchMetric::kF1:
      return f1(written, answer);
    case LongbenchMetric::kRougeL:
      return rouge_l(written, answer);
    case LongbenchMetric::kClass:
      return class_share(written, answer, classes);
    case LongbenchMetric::kCode:
      return similarity(code_line(written), answer);
  }
  return 0;
}

}  // namespace reynard::evaluation
