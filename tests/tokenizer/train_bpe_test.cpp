#include "reynard/tokenizer/train_bpe.h"

#include "reynard/tokenizer/byte_alphabet.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace reynard;
using tokenizer::Merges;
using tokenizer::PieceCounts;
using tokenizer::SplitPattern;

PieceCounts counts_of(const std::vector<std::string>& texts) {
  PieceCounts counts(SplitPattern::kGpt2);
  for (const std::string& text : texts) counts.add(text);
  return counts;
}

// The ids of a piece's bytes, in the order of the characters that stand for them.
std::vector<int32_t> byte_ids(std::string_view piece) {
  std::map<std::string, int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    ids[tokenizer::characters_of_bytes(std::string(1, static_cast<char>(byte)))];
  }
  int32_t next = 0;
  for (auto& [character, id] : ids) id = next++;
  std::vector<int32_t> result;
  for (const char c : piece) {
    result.push_back(ids[tokenizer::characters_of_bytes(std::string(1, c))]);
  }
  return result;
}

// The definition: all pairs are counted anew for each merge.
Merges learnt_naively(const PieceCounts& counts, int64_t num_merges, int64_t min_count) {
  std::vector<std::pair<std::vector<int32_t>, int64_t>> words;
  for (const auto& [piece, count] : counts.sorted()) words.emplace_back(byte_ids(piece), count);
  Merges merges;
  while (static_cast<int64_t>(merges.size()) < num_merges) {
    std::map<std::pair<int32_t, int32_t>, int64_t> pairs;
    for (const auto& [ids, count] : words) {
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) pairs[{ids[i], ids[i + 1]}] += count;
    }
    std::pair<int32_t, int32_t> best;
    int64_t most = 0;
    for (const auto& [pair, count] : pairs) {
      if (count > most) {
        most = count;
        best = pair;
      }
    }
    if (most < min_count || most == 0) break;
    const auto joined = static_cast<int32_t>(256 + merges.size());
    merges.push_back(best);
    for (auto& [ids, count] : words) {
      std::vector<int32_t> shorter;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool here = i + 1 < ids.size() && std::pair{ids[i], ids[i + 1]} == best;
        shorter.push_back(here ? joined : ids[i]);
        i += here;
      }
      ids = shorter;
    }
  }
  return merges;
}

TEST(TrainBpe, JoinsThePairThatIsMostFrequent) {
  const PieceCounts counts = counts_of({"the the the then he"});
  const Merges merges = tokenizer::learn_merges(counts, {.num_merges = 3});
  const auto id = [](char c) { return byte_ids(std::string(1, c))[0]; };
  // "he" occurs 5 times, "the" 4 times, " the" 3 times.
  EXPECT_EQ(merges, (Merges{{id('h'), id('e')}, {id('t'), 256}, {id(' '), 257}}));
}

// "ab" takes four of the ten "bc", of which six are left.
TEST(TrainBpe, PairsThatBecameRarerHaveTheirTurn) {
  std::vector<std::string> texts(4, " abc");
  texts.insert(texts.end(), 8, " ab");
  texts.insert(texts.end(), 6, "bc");
  const PieceCounts counts = counts_of(texts);
  EXPECT_EQ(tokenizer::learn_merges(counts, {.num_merges = 4}), learnt_naively(counts, 4, 2));
}

TEST(TrainBpe, TokensOfBytesAreNotSpecial) {
  EXPECT_SAYS(test::error_of([] {
                tokenizer::check_special_tokens({"<pad>", "a"});
              }),
              "--special a: is the token of a byte; give another, such as <|a|>");
}

TEST(TrainBpe, EqualsTheDefinition) {
  EXPECT_TRUE(rc::check([] {
    const auto word = rc::gen::element<std::string>("a",
                                                    "aa",
                                                    "aaaa",
                                                    "aaaaaaa",
                                                    "abab",
                                                    "babab",
                                                    " the",
                                                    " then",
                                                    "\xc3\xa9\xc3\xa9",
                                                    "\n\n",
                                                    "12",
                                                    " ");
    std::vector<std::string> texts;
    for (int i = *rc::gen::inRange(0, 30); i > 0; --i) texts.push_back(*word);
    const PieceCounts counts = counts_of(texts);
    const auto num_merges = *rc::gen::inRange<int64_t>(0, 30);
    const auto min_count = *rc::gen::inRange<int64_t>(1, 4);
    const Merges merges = tokenizer::learn_merges(
        counts, {.num_merges = num_merges, .min_count = min_count, .progress = {}});
    RC_ASSERT(merges == learnt_naively(counts, num_merges, min_count));
  }));
}

TEST(TrainBpe, TheOrderOfTheTextDoesNotMatter) {
  const std::vector<std::string> texts = test::difficult_texts();
  const PieceCounts forward = counts_of(texts);
  PieceCounts backward = counts_of({texts.rbegin(), texts.rbegin() + 3});
  backward.add(counts_of({texts.rbegin() + 3, texts.rend()}));
  EXPECT_EQ(forward.sorted(), backward.sorted());
}

TEST(TrainBpe, WritesATokenizerThatKeepsEveryText) {
  std::vector<std::string> texts = test::difficult_texts();
  for (const SplitPattern pattern :
       {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    PieceCounts counts(pattern);
    for (const std::string& text : texts) counts.add(text);
    const Merges merges = tokenizer::learn_merges(counts, {.num_merges = 100});
    const test::TempDir folder;
    test::write_file(folder / "tokenizer.json",
                     tokenizer::bpe_tokenizer_json(merges, pattern, {"<|endoftext|>", "<pad>"}));
    const auto learnt = tokenizer::make_tokenizer(folder.path().string());
    EXPECT_EQ(learnt->vocab_size(), static_cast<int64_t>(256 + merges.size() + 2));
    EXPECT_EQ(learnt->eos(), learnt->vocab_size() - 2);
    for (const std::string& text : texts) {
      const auto ids = learnt->encode(text);
      EXPECT_EQ(
          learnt->decode(std::vector<int64_t>(ids.begin(), ids.end()), {.keep_special = true}),
          text);
    }
  }
}

}  // namespace
