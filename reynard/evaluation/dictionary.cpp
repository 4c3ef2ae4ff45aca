#include "reynard/evaluation/dictionary.h"

#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_set>

namespace reynard::evaluation {

namespace {

// A key or value as one number in base num_content.
using Word = int64_t;

void append_record(std::vector<int64_t>& tokens,
                   const DictionaryVocabulary& vocabulary,
                   int64_t mark,
                   Word key,
                   Word value) {
  const auto append_word = [&](Word word) {
    std::array<int64_t, kKeyTokens> digits{};
    for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit) {
      *digit = vocabulary.content(word % vocabulary.num_content());
      word /= vocabulary.num_content();
    }
    tokens.insert(tokens.end(), digits.begin(), digits.end());
  };
  tokens.push_back(mark);
  append_word(key);
  tokens.push_back(vocabulary.value_mark());
  append_word(value);
}

// `count` different symbols; 0: none, which stands for all.
std::vector<int64_t> draw_symbols(PythonRandom& random, int64_t count, int64_t content) {
  std::vector<int64_t> symbols;
  while (static_cast<int64_t>(symbols.size()) < count) {
    const int64_t symbol = random.up_to(content - 1);
    if (std::ranges::find(symbols, symbol) == symbols.end()) symbols.push_back(symbol);
  }
  return symbols;
}

// Draws the keys or the values of one dictionary.
class WordSource {
 public:
  WordSource(PythonRandom& random, int64_t symbols, int64_t content, bool one_change)
      : random_(random), content_(content), symbols_(draw_symbols(random, symbols, content)) {
    for (int64_t i = 0; i < kKeyTokens; ++i) words_ *= content;
    if (one_change) base_ = any();
  }

  Word draw() {
    if (!base_) return any();
    int64_t place = 1;
    for (int64_t i = random_.up_to(kKeyTokens - 1); i > 0; --i) place *= content_;
    const int64_t old = *base_ / place % content_;
    return *base_ + (random_.up_to(content_ - 1) - old) * place;
  }

 private:
  Word any() {
    if (symbols_.empty()) return random_.up_to(words_ - 1);
    Word word = 0;
    for (int64_t i = 0; i < kKeyTokens; ++i) {
      word = word * content_ + symbols_[random_.up_to(static_cast<int64_t>(symbols_.size()) - 1)];
    }
    return word;
  }

  PythonRandom& random_;
  int64_t content_;
  Word words_ = 1;
  std::vector<int64_t> symbols_;
  std::optional<Word> base_;  // the key that all are changes of
};

void check_symbols(int64_t symbols, const char* what, int64_t content) {
  tensor::check_value(symbols >= 0 && symbols <= content,
                      "dictionary",
                      what,
                      symbols,
                      fmt::format("0 (all) ... {}", content));
}

// Key marks up to where the next record begins.
void fill_block(std::vector<int64_t>& tokens, int64_t mark, int64_t next) {
  tokens.resize(static_cast<size_t>(next), mark);
}

}  // namespace

int64_t num_keys(const DictionaryVocabulary& vocabulary) {
  const int64_t content = vocabulary.num_content();
  if (vocabulary.one_change) return 1 + kKeyTokens * (content - 1);
  const int64_t symbols = vocabulary.key_symbols > 0 ? vocabulary.key_symbols : content;
  int64_t keys = 1;
  for (int64_t i = 0; i < kKeyTokens; ++i) keys *= symbols;
  return keys;
}

int64_t DictionarySize::records(int64_t tokens) const {
  if (block == 0) return tokens / kRecordTokens;
  const int64_t rest = std::max<int64_t>(tokens % block - lead, 0);
  return tokens / block * records_of_block() + rest / kRecordTokens;
}

int64_t DictionarySize::record_begin(int64_t record) const {
  if (block == 0) return record * kRecordTokens;
  const int64_t in_block = records_of_block();
  return record / in_block * block + lead + record % in_block * kRecordTokens;
}

Dictionary make_dictionary(PythonRandom& random,
                           const DictionaryVocabulary& vocabulary,
                           const DictionarySize& size) {
  using tensor::check_value;
  constexpr const char* kName = "dictionary";
  check_value(vocabulary.size >= 5, kName, "vocabulary", vocabulary.size, ">= 5");
  check_value(vocabulary.size <= 1 << 15, kName, "vocabulary", vocabulary.size, "<= 32768");
  check_value(size.block == 0 || size.records_of_block() >= 1,
              kName,
              "block",
              size.block,
              fmt::format("0 (off) or >= {}", size.lead + kRecordTokens));
  const int64_t defined = size.records(size.definition_tokens);
  const int64_t asked = size.records(size.query_tokens);
  const std::string least = fmt::format(">= {}", size.lead + kRecordTokens);
  check_value(defined >= 1, kName, "definition tokens", size.definition_tokens, least);
  check_value(asked >= 1, kName, "query tokens", size.query_tokens, least);
  const int64_t content = vocabulary.num_content();
  check_symbols(vocabulary.key_symbols, "key symbols", content);
  check_symbols(vocabulary.value_symbols, "value symbols", content);
  check_value(defined <= num_keys(vocabulary),
              kName,
              "records",
              defined,
              fmt::format("at most the {} keys of the vocabulary", num_keys(vocabulary)));

  Dictionary dictionary;
  dictionary.definitions.reserve(static_cast<size_t>(size.definition_tokens));
  WordSource keys(random, vocabulary.key_symbols, content, vocabulary.one_change);
  WordSource values(random, vocabulary.value_symbols, content, false);
  std::unordered_set<Word> known;
  std::vector<std::array<Word, 2>> records;
  while (static_cast<int64_t>(records.size()) < defined) {
    const Word key = keys.draw();
    if (!known.insert(key).second) continue;
    fill_block(dictionary.definitions,
               vocabulary.key_mark(),
               size.record_begin(static_cast<int64_t>(records.size())));
    records.push_back({key, values.draw()});
    append_record(
        dictionary.definitions, vocabulary, vocabulary.key_mark(), key, records.back()[1]);
  }
  if (size.block > 0) {
    fill_block(dictionary.definitions, vocabulary.key_mark(), size.definition_tokens);
  }
  for (int64_t i = 0; i < asked; ++i) {
    fill_block(dictionary.queries, vocabulary.key_mark(), size.record_begin(i));
    const auto& [key, value] = records[random.up_to(defined - 1)];
    append_record(dictionary.queries, vocabulary, vocabulary.query_mark(), key, value);
  }
  if (size.block > 0) fill_block(dictionary.queries, vocabulary.key_mark(), size.query_tokens);
  return dictionary;
}

}  // namespace reynard::evaluation
