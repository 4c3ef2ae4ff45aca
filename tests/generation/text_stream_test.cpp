#include "reynard/generation/text_stream.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

namespace reynard::generation {
namespace {

// The pieces that the bytes of a text, one token each, come out in; the last one by finish().
std::vector<std::string> pieces(const std::string& text,
                                const std::vector<std::string>& stop = {}) {
  const tokenizer::ByteTokenizer tokenizer;
  TextStream stream(tokenizer, {.stop = stop});
  std::vector<std::string> out;
  for (const unsigned char byte : text) out.push_back(stream.add(byte));
  out.push_back(stream.finish());
  return out;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

using Pieces = std::vector<std::string>;

TEST(TextStream, CharactersComeWhole) {
  EXPECT_EQ(pieces("ab"), (Pieces{"a", "b", ""}));
  EXPECT_EQ(pieces("\xc3\xa9!"), (Pieces{"", "\xc3\xa9", "!", ""}));
  EXPECT_EQ(pieces("\xf0\x9f\xa6\x8a"), (Pieces{"", "", "", "\xf0\x9f\xa6\x8a", ""}));
  // What never becomes a character is shown as one.
  EXPECT_EQ(joined(pieces("\xf0\x9f")), "\xef\xbf\xbd");
  EXPECT_EQ(joined(pieces("\xff"
                          "abcd")),
            "\xef\xbf\xbd"
            "abcd");
  EXPECT_EQ(joined(pieces("a\x80"
                          "b")),
            "a\xef\xbf\xbd"
            "b");
}

TEST(TextStream, StopStringsEndTheTextBeforeThem) {
  EXPECT_EQ(pieces("one END two", {"END"}),
            (Pieces{"o", "n", "e", " ", "", "", "", "", "", "", "", ""}));
  EXPECT_EQ(joined(pieces("one END two", {"END"})), "one ");
  // Held back while it may become a stop string, and given when it did not.
  EXPECT_EQ(pieces("ENE", {"END"}), (Pieces{"", "", "EN", "E"}));
  EXPECT_EQ(joined(pieces("aabaac", {"aac"})), "aab");
  EXPECT_EQ(joined(pieces("x\n\ny", {"zz", "\n\n", "\n\ny"})), "x");
  EXPECT_EQ(joined(pieces("\xc3\xa9\xc3\xa9", {"\xc3\xa9\xc3\xa9"})), "");
}

TEST(TextStream, TellsThatItStopped) {
  const tokenizer::ByteTokenizer tokenizer;
  TextStream stream(tokenizer, {.stop = {"."}});
  EXPECT_EQ(stream.add('a'), "a");
  EXPECT_FALSE(stream.is_stopped());
  EXPECT_EQ(stream.add('.'), "");
  EXPECT_TRUE(stream.is_stopped());
  EXPECT_EQ(stream.add('b'), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, IdsWithoutTextAddNothing) {
  const tokenizer::ByteTokenizer tokenizer;
  TextStream stream(tokenizer, {});
  EXPECT_EQ(stream.add(tokenizer::ByteTokenizer::kEos), "");
  EXPECT_EQ(stream.add(300), "");  // a padded vocabulary
  EXPECT_EQ(stream.add(-1), "");
  EXPECT_EQ(stream.add('a'), "a");
}

TEST(TextStream, EndsACharacterThatWasBegun) {
  const tokenizer::ByteTokenizer tokenizer;
  TextStream stream(tokenizer, {.begun = "\xe2\x82"});
  EXPECT_EQ(stream.add(0xac), "\xe2\x82\xac");
  EXPECT_EQ(stream.add('a'), "a");
  EXPECT_EQ(TextStream(tokenizer, {.begun = "\xe2\x82"}).finish(), "\xef\xbf\xbd");
}

TEST(TextStream, KeepsABlankBehindWhatCameBefore) {
  const auto tokenizer = test::sentencepiece_tokenizer();
  const auto encoded = tokenizer->encode("the hello");
  const std::vector<int64_t> ids(encoded.begin(), encoded.end());
  ASSERT_EQ(ids.size(), 2U);
  const std::span<const int64_t> before = std::span(ids).first(1);
  EXPECT_EQ(TextStream(*tokenizer, {}, before).add(ids[1]), " hello");
  EXPECT_EQ(TextStream(*tokenizer, {}).add(ids[1]), "hello");
  // Nothing but BOS before it, and ids without text.
  const std::vector<int64_t> bos = {tokenizer->bos().value(), 100000, -1};
  EXPECT_EQ(TextStream(*tokenizer, {}, bos).add(ids[1]), "hello");
  EXPECT_EQ(TextStream(*tokenizer, {.stop = {" he"}}, before).add(ids[1]), "");
}

// Of a list of tokens with their probabilities each is what it adds to the text.
TEST(TextOfToken, HasTheBlankThatItBeginsWith) {
  const auto words = test::sentencepiece_tokenizer();
  const auto ids = words->encode("the hello");
  ASSERT_EQ(ids.size(), 2U);
  EXPECT_EQ(text_of_token(*words, ids[0]), " the");
  EXPECT_EQ(text_of_token(*words, ids[1]), " hello");
  EXPECT_EQ(text_of_token(*words, words->vocab_size()), "");
  EXPECT_EQ(text_of_token(*words, -1), "");
  const tokenizer::ByteTokenizer bytes;
  EXPECT_EQ(text_of_token(bytes, 0xe2), "\xe2");
  EXPECT_EQ(text_of_token(bytes, tokenizer::ByteTokenizer::kEos), "<eos>");
}

TEST(TextStream, SpecialTokensAreNothingOrTheirNames) {
  const tokenizer::ByteTokenizer tokenizer;
  TextStream stream(tokenizer, {.keep_special = true});
  EXPECT_EQ(stream.add(tokenizer::ByteTokenizer::kEos), "<eos>");
}

TEST(TextStream, RejectsAnEmptyStopString) {
  const tokenizer::ByteTokenizer tokenizer;
  EXPECT_THROW(TextStream(tokenizer, {.stop = {"a", ""}}), Error);
}

}  // namespace
}  // namespace reynard::generation
