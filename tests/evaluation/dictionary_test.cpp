// Dictionaries: their structure, and a model that looks values up by reading.

#include "reynard/evaluation/dictionary.h"

#include "reynard/evaluation/evaluate.h"
#include "reynard/evaluation/registry.h"
#include "reynard/evaluation/scorer.h"
#include "reynard/tensor/check.h"
#include "tests/support/corpus.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace reynard::evaluation {
namespace {

using Word = std::vector<int64_t>;

TEST(Dictionary, HasTheStructureOfThePaper) {
  PythonRandom random(1);
  const Dictionary dictionary = make_dictionary(random, {}, {});
  // 25 whole records of 10 tokens in 256, and key marks.
  ASSERT_EQ(dictionary.definitions.size(), 256);
  ASSERT_EQ(dictionary.queries.size(), 256);
  std::map<Word, Word> defined;
  const auto word = [](const std::vector<int64_t>& tokens, size_t at) {
    return Word(tokens.begin() + at, tokens.begin() + at + 4);
  };
  for (size_t at = 0; at < 250; at += 10) {
    EXPECT_EQ(dictionary.definitions[at], 33);
    EXPECT_EQ(dictionary.definitions[at + 5], 34);
    defined[word(dictionary.definitions, at + 1)] = word(dictionary.definitions, at + 6);
  }
  EXPECT_EQ(defined.size(), 25);  // distinct keys
  for (size_t at = 0; at < 250; at += 10) {
    EXPECT_EQ(dictionary.queries[at], 35);
    EXPECT_EQ(defined.at(word(dictionary.queries, at + 1)), word(dictionary.queries, at + 6));
  }
  for (const int64_t token : dictionary.definitions) {
    EXPECT_GE(token, 33);
    EXPECT_LT(token, 33 + 64);
  }
}

TEST(Dictionary, RefusesWhatHasNoRecordsOrTooFewKeys) {
  PythonRandom random(1);
  EXPECT_THROW(make_dictionary(random, {}, {9, 100, 0}), Error);
  EXPECT_THROW(make_dictionary(random, {}, {100, 9, 0}), Error);
  EXPECT_THROW(make_dictionary(random, {.size = 4}, {100, 100, 0}), Error);
  EXPECT_THROW(make_dictionary(random, {.key_symbols = 2}, {170, 100, 0}), Error);
  EXPECT_THROW(make_dictionary(random, {.key_symbols = 62}, {}), Error);
  EXPECT_THROW(make_dictionary(random, {.value_symbols = -1}, {}), Error);
  EXPECT_THROW(make_dictionary(random, {.size = 5}, {170, 100, 0}), Error);  // 2^4 keys, 17 records
}

TEST(Dictionary, KeysOfFewSymbolsAreDistinct) {
  PythonRandom random(1);
  const Dictionary dictionary = make_dictionary(random, {.key_symbols = 4}, {});
  std::set<int64_t> symbols;
  std::set<Word> keys;
  for (size_t at = 0; at < 250; at += 10) {
    const auto key = dictionary.definitions.begin() + static_cast<int64_t>(at) + 1;
    symbols.insert(key, key + 4);
    keys.insert(Word(key, key + 4));
  }
  EXPECT_EQ(symbols.size(), 4);
  EXPECT_EQ(keys.size(), 25);
}

TEST(Dictionary, KeysOfOneChangeDifferFromOneKeyInOneSymbol) {
  PythonRandom random(1);
  const Dictionary dictionary =
      make_dictionary(random, {.value_symbols = 3, .one_change = true}, {});
  std::vector<Word> keys;
  std::set<int64_t> in_values;
  for (size_t at = 0; at < 250; at += 10) {
    const auto record = dictionary.definitions.begin() + static_cast<int64_t>(at);
    keys.emplace_back(record + 1, record + 5);
    in_values.insert(record + 6, record + 10);
  }
  EXPECT_EQ(in_values.size(), 3);
  EXPECT_EQ(std::set<Word>(keys.begin(), keys.end()).size(), 25);
  // The key itself: what most have at each place.
  Word base(4);
  for (size_t place = 0; place < 4; ++place) {
    std::map<int64_t, int> counts;
    for (const Word& key : keys) ++counts[key[place]];
    base[place] =
        std::ranges::max_element(counts, {}, &std::pair<const int64_t, int>::second)->first;
  }
  for (const Word& key : keys) {
    int changes = 0;
    for (size_t place = 0; place < 4; ++place) changes += key[place] != base[place] ? 1 : 0;
    EXPECT_LE(changes, 1);
  }
  // 1 + 4 * 60 keys exist.
  EXPECT_THROW(make_dictionary(random, {.one_change = true}, {2420, 100, 0}), Error);
}

TEST(Dictionary, BlocksHoldWholeRecords) {
  PythonRandom one(1), other(1);
  const Dictionary dense = make_dictionary(one, {}, {500, 300, 0});
  EXPECT_EQ(dense.definitions.size(), 500);
  const Dictionary filled = make_dictionary(other, {}, {512, 308, 256});
  ASSERT_EQ(filled.definitions.size(), 512);
  ASSERT_EQ(filled.queries.size(), 308);
  // The same records, with six key marks behind each 25 of them.
  for (int64_t record = 0; record < 50; ++record) {
    const int64_t at = DictionarySize{}.record_begin(record);
    EXPECT_EQ(at, record < 25 ? record * 10 : 256 + (record - 25) * 10);
    EXPECT_TRUE(std::equal(dense.definitions.begin() + record * 10,
                           dense.definitions.begin() + record * 10 + 10,
                           filled.definitions.begin() + at))
        << record;
  }
  for (const int64_t at : {250, 255, 506, 511}) EXPECT_EQ(filled.definitions[at], 33) << at;
  EXPECT_EQ(filled.queries[307], 33);
}

// Remembers what followed every <key mark, key> among the last `memory` tokens.
class Reader final : public Scorer {
 public:
  explicit Reader(int64_t memory) : memory_(memory) {}
  std::vector<Response> answer(std::span<const Request> requests) override {
    std::vector<Response> responses;
    for (const Request& request : requests) {
      responses.emplace_back(read(std::get<Score>(request.query)));
      contexts.push_back(std::get<Score>(request.query).context);
    }
    return responses;
  }
  std::vector<std::vector<int64_t>> contexts;  // of all requests

 private:
  Scored read(const Score& score) const {
    Scored scored;
    std::vector<int64_t> tokens = score.context;
    for (const int64_t token : score.continuation) {
      scored.hits.push_back(next(tokens) == token ? 1 : 0);
      scored.logprobs.push_back(-1);
      tokens.push_back(token);
    }
    return scored;
  }
  // What followed the last six or more tokens (key, mark, part of the value) before.
  int64_t next(const std::vector<int64_t>& tokens) const {
    const auto size = static_cast<int64_t>(tokens.size());
    for (int64_t end = size - 1; end > std::max<int64_t>(5, size - memory_); --end) {
      if (std::equal(tokens.end() - 5, tokens.end(), tokens.begin() + end - 5)) return tokens[end];
    }
    return -1;
  }
  int64_t memory_;
};

nlohmann::json run(Scorer& scorer) {
  const test::TempDir folder;
  const Corpus corpus = test::corpus_of({1, 2, 3}, {3});
  EvaluationConfig config;
  config.dictionary.lengths = {256, 1024};
  config.dictionary.repeats = 3;
  return evaluate(
      scorer, *task_named("dictionary").make(corpus, config, {}), {.folder = folder.path()});
}

TEST(DictionaryTask, AReaderWithEnoughMemoryScoresOne) {
  Reader reader(1 << 20);
  const auto summary = run(reader);
  EXPECT_EQ(summary.at("metrics").at("score"), 1.0);
  const auto& groups = summary.at("series").at("groups");
  ASSERT_EQ(groups.size(), 2);
  EXPECT_EQ(groups[1].at("length"), 1024);
  EXPECT_EQ(groups[1].at("low"), 1.0);
  EXPECT_EQ(groups[1].at("token_accuracy"), 1.0);
}

// As every row of training does: what follows a context's first token depends on it.
TEST(DictionaryTask, EachBlockOfTheMemoryBeginsWithBos) {
  Reader reader(1 << 20);
  Corpus corpus = test::corpus_of({1, 2, 3}, {3});
  corpus.bos = 256;
  EvaluationConfig config;
  config.dictionary.lengths = {1024};
  config.dictionary.repeats = 1;
  const auto summary = [&](int64_t block) {
    const test::TempDir folder;
    config.dictionary.block = block;
    return evaluate(reader,
                    *task_named("dictionary").make(corpus, config, {.local_context = 256}),
                    {.folder = folder.path()});
  };
  EXPECT_EQ(summary(256).at("metrics").at("score"), 1.0);
  ASSERT_EQ(reader.contexts.size(), 1);
  ASSERT_EQ(reader.contexts[0].size(), 1024);
  for (size_t at = 0; at < 1024; ++at) {
    EXPECT_EQ(reader.contexts[0][at] == *corpus.bos, at % 256 == 0) << at;
  }
  EXPECT_EQ(summary(128).at("metrics").at("score"), 1.0);  // no contexts of their own
  EXPECT_EQ(std::ranges::count(reader.contexts[1], *corpus.bos), 1);
  EXPECT_EQ(reader.contexts[1].size(), 1025);
  EXPECT_EQ(summary(0).at("metrics").at("score"), 1.0);  // one long context
  EXPECT_EQ(std::ranges::count(reader.contexts[2], *corpus.bos), 1);
  EXPECT_EQ(reader.contexts[2].size(), 1 + 102 * 10);
  EXPECT_THROW(summary(9), Error);
  config.dictionary.lengths = {10};
  EXPECT_THROW(summary(256), Error);  // no room for a record behind BOS
}

TEST(DictionaryTask, OneWithoutScoresNearChanceAndForgetsTheFar) {
  Reader forgetful(1);
  EXPECT_EQ(run(forgetful).at("metrics").at("score"), 0.0);
  Reader near(600);  // reaches all of 256 tokens, little of 1024
  const auto groups = run(near).at("series").at("groups");
  EXPECT_EQ(groups[0].at("score"), 1.0);
  EXPECT_LT(groups[1].at("score").get<double>(), 0.6);
}

// Four times a short context is less than the shortest dictionary, which is then the only one.
TEST(DictionaryTask, AModelOfShortRowsIsAskedTheShortest) {
  const Corpus corpus = test::corpus_of({0, 1, 2}, {3});
  const auto task =
      task_named("dictionary").make(corpus, {}, {.train_length = 32, .vocab_size = 257});
  EXPECT_EQ(task->settings().at("lengths"), std::vector<int64_t>{256});
}

}  // namespace
}  // namespace reynard::evaluation
