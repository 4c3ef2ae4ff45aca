#pragma once
// Dictionary lookup (Focused Transformer, Tworkowski et al. 2023, appendix D): definitions of keys,
// then queries for some of them. Tokens are ids of a vocabulary of its own; with the byte tokenizer
// they are printable characters, so that training text can be prepared like any other.

#include "reynard/evaluation/python_random.h"

#include <cstdint>
#include <vector>

namespace reynard::evaluation {

struct DictionaryVocabulary {
  int64_t first = 33;  // '!': mark of a key, then of a value, then of a query, then content
  int64_t size = 64;
  // Keys and values are made of so many symbols, drawn for each dictionary: many keys agree in all
  // but one, and values tell little; 0: of all.
  int64_t key_symbols = 0, value_symbols = 0;
  bool one_change = false;  // all keys differ from one key in one symbol, which may be any

  int64_t key_mark() const { return first; }
  int64_t value_mark() const { return first + 1; }
  int64_t query_mark() const { return first + 2; }
  int64_t content(int64_t i) const { return first + 3 + i; }
  int64_t num_content() const { return size - 3; }
};

// How many different keys a vocabulary has.
int64_t num_keys(const DictionaryVocabulary& vocabulary);

inline constexpr int64_t kKeyTokens = 4;      // of a key, and of a value
inline constexpr int64_t kRecordTokens = 10;  // mark, key, mark, value

struct DictionarySize {
  int64_t definition_tokens = 256, query_tokens = 256;
  // Each block of so many tokens holds whole records and is filled up with key marks, so that local
  // contexts of this length cut none; 0: records follow each other.
  int64_t block = 256;
  int64_t lead = 0;  // key marks before the first record of a block: room for BOS

  // Records in a number of tokens, and where a record begins in them.
  int64_t records(int64_t tokens) const;
  int64_t record_begin(int64_t record) const;
  int64_t records_of_block() const { return (block - lead) / kRecordTokens; }
};

struct Dictionary {
  std::vector<int64_t> definitions;
  std::vector<int64_t> queries;  // of keys that are defined
};
// As many records as fit; keys are distinct. Throws reynard::Error when there are fewer keys than
// that, or no record fits.
Dictionary make_dictionary(PythonRandom& random,
                           const DictionaryVocabulary& vocabulary,
                           const DictionarySize& size);

}  // namespace reynard::evaluation
