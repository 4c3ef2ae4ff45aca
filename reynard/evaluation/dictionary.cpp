#include "reynard/evaluation/dictionary.h"

#include "reynard/tensor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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

// As many different symbols as keys are made of; none: all.
std::vector<int64_t> draw_symbols(PythonRandom& random, const DictionaryVocabulary& vocabulary) {
  std::vector<int64_t> symbols;
  while (static_cast<int64_t>(symbols.size()) < vocabulary.key_symbols) {
    const int64_t symbol = random.up_to(vocabulary.num_content() - 1);
    if (std::ranges::find(symbols, symbol) == symbols.end()) symbols.push_back(symbol);
  }
  return symbols;
}

Word draw_key(PythonRandom& random, const std::vector<int64_t>& symbols, int64_t base, Word words) {
  if (symbols.empty()) return random.up_to(words - 1);
  Word key = 0;
  for (int64_t i = 0; i < kKeyTokens; ++i) {
    key = key * base + symbols[random.up_to(static_cast<int64_t>(symbols.size()) - 1)];
  }
  return key;
}

// Key marks up to where the next record begins.
void fill_block(std::vector<int64_t>& tokens, int64_t mark, int64_t next) {
  tokens.resize(static_cast<size_t>(next), mark);
}

}  // namespace

int64_t DictionarySize::records(int64_t tokens) const {
  if (block == 0) return tokens / kRecordTokens;
  return tokens / block * (block / kRecordTokens) + tokens % block / kRecordTokens;
}

int64_t DictionarySize::record_begin(int64_t record) const {
  if (block == 0) return record * kRecordTokens;
  const int64_t in_block = block / kRecordTokens;
  return record / in_block * block + record % in_block * kRecordTokens;
}

Dictionary make_dictionary(PythonRandom& random,
                           const DictionaryVocabulary& vocabulary,
                           const DictionarySize& size) {
  using tensor::check_value;
  constexpr const char* kName = "dictionary";
  check_value(vocabulary.size >= 5, kName, "vocabulary", vocabulary.size, ">= 5");
  check_value(vocabulary.size <= 1 << 15, kName, "vocabulary", vocabulary.size, "<= 32768");
  check_value(size.block == 0 || size.block >= kRecordTokens,
              kName,
              "block",
              size.block,
              "0 (off) or >= 10");
  const int64_t defined = size.records(size.definition_tokens);
  const int64_t asked = size.records(size.query_tokens);
  check_value(defined >= 1, kName, "definition tokens", size.definition_tokens, ">= 10");
  check_value(asked >= 1, kName, "query tokens", size.query_tokens, ">= 10");
  check_value(vocabulary.key_symbols >= 0 && vocabulary.key_symbols <= vocabulary.num_content(),
              kName,
              "key symbols",
              vocabulary.key_symbols,
              fmt::format("0 (all) ... {}", vocabulary.num_content()));
  const int64_t in_keys =
      vocabulary.key_symbols > 0 ? vocabulary.key_symbols : vocabulary.num_content();
  Word words = 1, keys = 1;
  for (int64_t i = 0; i < kKeyTokens; ++i) words *= vocabulary.num_content(), keys *= in_keys;
  check_value(defined <= keys,
              kName,
              "records",
              defined,
              fmt::format("at most the {} keys of the vocabulary", keys));

  Dictionary dictionary;
  dictionary.definitions.reserve(static_cast<size_t>(size.definition_tokens));
  const std::vector<int64_t> symbols = draw_symbols(random, vocabulary);
  std::unordered_set<Word> known;
  std::vector<std::array<Word, 2>> records;
  while (static_cast<int64_t>(records.size()) < defined) {
    const Word key = draw_key(random, symbols, vocabulary.num_content(), words);
    if (!known.insert(key).second) continue;
    fill_block(dictionary.definitions,
               vocabulary.key_mark(),
               size.record_begin(static_cast<int64_t>(records.size())));
    records.push_back({key, random.up_to(words - 1)});
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
