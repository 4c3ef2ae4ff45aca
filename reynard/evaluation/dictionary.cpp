#include "reynard/evaluation/dictionary.h"

#include "reynard/tensor/check.h"

#include <fmt/format.h>

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

}  // namespace

Dictionary make_dictionary(PythonRandom& random,
                           const DictionaryVocabulary& vocabulary,
                           int64_t definition_tokens,
                           int64_t query_tokens) {
  using tensor::check_value;
  constexpr const char* kName = "dictionary";
  check_value(vocabulary.size >= 5, kName, "vocabulary", vocabulary.size, ">= 5");
  check_value(vocabulary.size <= 1 << 15, kName, "vocabulary", vocabulary.size, "<= 32768");
  const int64_t defined = definition_tokens / kRecordTokens;
  const int64_t asked = query_tokens / kRecordTokens;
  check_value(defined >= 1, kName, "definition tokens", definition_tokens, ">= 10");
  check_value(asked >= 1, kName, "query tokens", query_tokens, ">= 10");
  Word words = 1;
  for (int64_t i = 0; i < kKeyTokens; ++i) words *= vocabulary.num_content();
  check_value(defined <= words,
              kName,
              "records",
              defined,
              fmt::format("at most the {} keys of the vocabulary", words));

  Dictionary dictionary;
  dictionary.definitions.reserve(static_cast<size_t>(defined * kRecordTokens));
  std::unordered_set<Word> known;
  std::vector<std::array<Word, 2>> records;
  while (static_cast<int64_t>(records.size()) < defined) {
    const Word key = random.up_to(words - 1);
    if (!known.insert(key).second) continue;
    records.push_back({key, random.up_to(words - 1)});
    append_record(
        dictionary.definitions, vocabulary, vocabulary.key_mark(), key, records.back()[1]);
  }
  for (int64_t i = 0; i < asked; ++i) {
    const auto& [key, value] = records[random.up_to(defined - 1)];
    append_record(dictionary.queries, vocabulary, vocabulary.query_mark(), key, value);
  }
  return dictionary;
}

}  // namespace reynard::evaluation
