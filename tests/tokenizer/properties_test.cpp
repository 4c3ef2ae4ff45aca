// Properties that every tokenizer has, whatever its vocabulary.

#include "reynard/tokenizer/byte_pair.h"
#include "reynard/tokenizer/json_string.h"
#include "reynard/tokenizer/regex.h"
#include "reynard/tokenizer/split_pattern.h"
#include "reynard/tokenizer/tokenizer.h"
#include "reynard/tokenizer/unicode.h"
#include "reynard/tokenizer/unicode_form.h"
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace reynard;
using tokenizer::Merge;
using tokenizer::SplitPattern;

// Text of pieces that are close to each other in the patterns' eyes; valid UTF-8.
std::string text_of_pieces(int most) {
  const auto piece = rc::gen::element<std::string>("a",
                                                   "the",
                                                   "The",
                                                   " ",
                                                   "  ",
                                                   "\n",
                                                   "\r\n",
                                                   "\t",
                                                   "'",
                                                   "'s",
                                                   "'LL",
                                                   "'ſ",
                                                   "12",
                                                   "3",
                                                   "½",
                                                   "²",
                                                   "!",
                                                   "...",
                                                   "é",
                                                   "你好",
                                                   "안녕",
                                                   "\u00a0",
                                                   "\u3000",
                                                   "\u2028",
                                                   "\u0301",
                                                   "😀",
                                                   "\u200d",
                                                   "_",
                                                   "hello",
                                                   "ll",
                                                   " the",
                                                   "\u0660",
                                                   "ǅ",
                                                   "\U0001e030",
                                                   "\x1c",
                                                   "\xc2\x85",
                                                   "▁",
                                                   "<s>");
  std::string text;
  const auto count = *rc::gen::inRange(0, most);
  for (int i = 0; i < count; ++i) text += *piece;
  return text;
}

TEST(SplitPatterns, ScannersFindThePiecesOfTheRegularExpressions) {
  for (const SplitPattern pattern :
       {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2}) {
    const tokenizer::Regex regex(tokenizer::regex_of(pattern));
    EXPECT_EQ(tokenizer::split_pattern_of(tokenizer::regex_of(pattern)), pattern);
    EXPECT_TRUE(rc::check([&] {
      const std::string text = text_of_pieces(20);
      std::vector<std::string_view> pieces;
      tokenizer::split_text(pattern, text, pieces);
      std::vector<std::string_view> expected;
      regex.for_each_match(text, [&](std::size_t begin, std::size_t end) {
        expected.push_back(std::string_view(text).substr(begin, end - begin));
      });
      RC_ASSERT(pieces == expected);
    }));
  }
}

// Joins the pair of the lowest rank, the leftmost of equals, until there is none.
std::vector<int32_t> joined_naively(const tokenizer::MergeTable& merges, std::vector<int32_t> ids) {
  while (true) {
    Merge best;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge merge = merges.get(ids[i], ids[i + 1]);
      if (merge.rank < best.rank) {
        best = merge;
        at = i;
      }
    }
    if (best.rank == Merge::kNone) return ids;
    ids[at] = best.joined;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(JoinPairs, ShortAndLongPiecesAreJoinedAsTheDefinitionSays) {
  EXPECT_TRUE(rc::check([] {
    tokenizer::MergeTable merges;
    const auto num_merges = *rc::gen::inRange(0, 40);
    for (int32_t rank = 0; rank < num_merges; ++rank) {
      const auto id = [&] { return *rc::gen::inRange<int32_t>(0, 4 + rank); };
      merges.set(id(), id(), {.rank = *rc::gen::inRange(0, 20), .joined = 4 + rank});
    }
    const auto size = *rc::gen::element<std::size_t>(0, 1, 2, 5, 20, 47, 48, 49, 50, 120);
    std::vector<int32_t> ids =
        *rc::gen::container<std::vector<int32_t>>(size, rc::gen::inRange<int32_t>(0, 4));
    const std::vector<int32_t> expected = joined_naively(merges, ids);
    ids.resize(tokenizer::join_pairs(merges, ids));
    RC_ASSERT(ids == expected);
  }));
}

class AnyTokenizer : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string& kind = GetParam();
    auto json = kind == "metaspace" ? test::metaspace_json() : test::byte_level_json();
    if (kind == "nfc") {
      json["normalizer"] = {{"type", "NFC"}};
      json["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", tokenizer::regex_of(SplitPattern::kQwen2)}}},
             {"behavior", "Isolated"}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    }
    const bool llama = kind.starts_with("llama");
    if (llama) {
      nlohmann::json begin = {{"content", "<s>"}, {"special", true}, {"lstrip", true}};
      begin["rstrip"] = kind != "llama";
      const nlohmann::json config = {{"legacy", kind == "llama"},
                                     {"added_tokens_decoder", {{"1", begin}}}};
      test::write_file(folder_ / "tokenizer_config.json", config.dump());
    }
    std::string name = (folder_ / "tokenizer").string();
    test::write_file(name,
                     kind == "tiktoken"                 ? test::tiktoken_ranks()
                     : kind == "sentencepiece" || llama ? test::sentencepiece_model()
                     : kind == "trimmed"
                         ? test::sentencepiece_model({.remove_extra_whitespaces = true})
                         : json.dump());
    if (kind == "tiktoken") name = "llama3:" + name;
    if (kind == "escaped") name = "json:" + name;
    tokenizer_ = tokenizer::make_tokenizer(kind == "byte" ? "byte" : name);
  }

  test::TempDir folder_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
};

// prepare and the chunks of long texts depend on it.
TEST_P(AnyTokenizer, TextThatIsCutAtASafePlaceHasTheSameIds) {
  int num_cut = 0;
  EXPECT_TRUE(rc::check([&] {
    const std::string text = text_of_pieces(60);
    const std::vector<int32_t> expected = tokenizer_->encode(text);
    for (std::size_t seen = 1; seen <= text.size(); ++seen) {
      const std::size_t safe = tokenizer_->safe_prefix(std::string_view(text).substr(0, seen));
      if (safe == 0) continue;
      ++num_cut;
      std::vector<int32_t> ids = tokenizer_->encode(std::string_view(text).substr(0, safe));
      const auto rest =
          tokenizer_->encode(std::string_view(text).substr(safe), {.continues = true});
      ids.insert(ids.end(), rest.begin(), rest.end());
      RC_ASSERT(ids == expected);
    }
  }));
  EXPECT_GT(num_cut, 100);  // the property is not empty; how often depends on the seed
}

TEST_P(AnyTokenizer, LongTextsAreTheSumOfTheirWords) {
  std::string text;
  std::vector<int32_t> expected;
  for (int i = 0; i < 20000; ++i) {
    const std::string word = i % 7 == 0 ? " hello's" : " the";
    const auto ids = tokenizer_->encode(word, {.continues = i > 0});
    expected.insert(expected.end(), ids.begin(), ids.end());
    text += word;
  }
  EXPECT_EQ(tokenizer_->encode(text), expected);
  EXPECT_EQ(tokenizer_->encode(text), expected);  // from the cache
}

TEST_P(AnyTokenizer, AnyBytesCanBeEncodedAndAnyIdsDecoded) {
  EXPECT_TRUE(rc::check([&] {
    const auto ids = tokenizer_->encode(*rc::gen::arbitrary<std::string>());
    for (const int32_t id : ids) RC_ASSERT(id >= 0 && id < tokenizer_->vocab_size());
    const auto some = *rc::gen::container<std::vector<int64_t>>(
        rc::gen::inRange<int64_t>(0, tokenizer_->vocab_size()));
    tokenizer_->decode(some);
  }));
}

INSTANTIATE_TEST_SUITE_P(Tokenizers,
                         AnyTokenizer,
                         testing::Values("byte",
                                         "gpt2",
                                         "nfc",
                                         "metaspace",
                                         "tiktoken",
                                         "escaped",
                                         "sentencepiece",
                                         "trimmed",
                                         "llama",
                                         "llama_not_legacy"),
                         [](const auto& info) { return info.param; });

TEST(UnicodeForms, CharactersAfterUnicode9StayAsTheyAre) {
  using tokenizer::to_form;
  using tokenizer::UnicodeForm;
  EXPECT_EQ(to_form("e\u0301\u0323", UnicodeForm::kNfc), "\u1eb9\u0301");
  EXPECT_EQ(to_form("\u212b", UnicodeForm::kNfd), "A\u030a");
  EXPECT_EQ(to_form("\ufb01\u00bd", UnicodeForm::kNfkc), "fi1\u20442");
  EXPECT_EQ(to_form("e\u0301\U0001e033e\u0301", UnicodeForm::kNfkc), "\u00e9\U0001e033\u00e9");
}

TEST(LeadingHex, WantsAllDigitsAndNothingElse) {
  using tokenizer::leading_hex;
  EXPECT_EQ(leading_hex("0fA9z", 4), 0x0fa9U);
  EXPECT_EQ(leading_hex("ffffffff", 8), 0xffffffffU);
  for (const char* bad : {"", "12", "123", "12g4", "0x12", "-123", "+123", " 123", "12 4"}) {
    EXPECT_EQ(leading_hex(bad, 4), std::nullopt) << bad;
  }
}

TEST(JsonStrings, ReadsWhatItWritesAndWhatPythonWrites) {
  EXPECT_TRUE(rc::check([] {
    const std::string text = text_of_pieces(20);
    RC_ASSERT(tokenizer::from_json_string(tokenizer::to_json_string(text)) == text);
  }));
  EXPECT_EQ(tokenizer::from_json_string("a\\ud83d\\ude00\\ud83d!\\/"), "a😀\ufffd!/");
  EXPECT_EQ(tokenizer::from_json_string("\xff"), "\xff");  // bytes stay what they are
  for (const char* bad : {"\\", "\\q", "\\u12", "\\u12g4", "\"", "\n"}) {
    EXPECT_EQ(tokenizer::from_json_string(bad), std::nullopt) << bad;
  }
}

}  // namespace
