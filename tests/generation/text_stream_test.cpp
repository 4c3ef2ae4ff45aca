#include "reynard/generation/text_stream.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

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

std::unique_ptr<tokenizer::Tokenizer> tokenizer_of_json(const nlohmann::json& json,
                                                        const std::string& prefix = "") {
  const test::TempDir folder;
  test::write_file(folder / "tokenizer.json", json.dump());
  return tokenizer::make_tokenizer(prefix + (folder / "tokenizer.json").string());
}

// Whether bytes that are tokens end a character, and what an escape is, is seen at its end only.
TEST(TextStream, CharactersOfSeveralTokensComeWhole) {
  const std::vector<std::shared_ptr<tokenizer::Tokenizer>> tokenizers = {
      tokenizer_of_json(test::metaspace_json()),
      test::sentencepiece_tokenizer(),
      tokenizer_of_json(test::byte_level_json(), "json:")};
  const std::string text =
      "the \xf0\x9f\x98\x80\xf0\x9f\x8e\x89 hell \xe4\xbd\xa0\xe5\xa5\xbd\xd0\x9f "
      "\xf0\x9f\xa6\x8ao\xf0\x9f\xa6\x8a\n\\the";
  for (const auto& tokenizer : tokenizers) {
    const auto encoded = tokenizer->encode(text);
    const std::vector<int64_t> ids(encoded.begin(), encoded.end());
    TextStream stream(*tokenizer, {});
    std::string streamed;
    for (const int64_t id : ids) {
      streamed += stream.add(id);
      EXPECT_EQ(streamed, text.substr(0, streamed.size())) << tokenizer->name();
    }
    EXPECT_EQ(streamed + stream.finish(), tokenizer->decode(ids)) << tokenizer->name();
    EXPECT_EQ(streamed, text) << tokenizer->name();
  }
}

// What is read of an escaped text begins at no token that an escape goes on in, however long the
// text before it is: from there on it would be no JSON string.
TEST(TextStream, EscapesStayWholeWhereverTheyAre) {
  const auto tokenizer = tokenizer_of_json(test::byte_level_json(), "json:");
  const std::string told = "print(\"hi\") \\\\\\\\\\\\\\new \xf0\x9f\x98\xa8 \xf0\x9f\x98\xa8 ok";
  std::vector<int64_t> ids;
  const auto streamed = [&](std::size_t before) {
    TextStream stream(*tokenizer, {}, std::span(ids).first(before));
    std::string out;
    for (const int64_t id : std::span(ids).subspan(before)) out += stream.add(id);
    return out + stream.finish();
  };
  std::string text = told;
  for (int words = 0; words < 40; ++words) {
    if (words > 0) text = "a " + text;
    const auto encoded = tokenizer->encode(text);
    ids.assign(encoded.begin(), encoded.end());
    EXPECT_EQ(streamed(0), text);
  }
  for (std::size_t before = 0; before < ids.size(); ++before) {
    const std::string begun = tokenizer->decode(std::span(ids).first(before));
    if (text.starts_with(begun)) {  // it ends no character in the middle
      EXPECT_EQ(streamed(before), text.substr(begun.size())) << begun;
    }
  }
}

TEST(TextStream, CharactersThatNeverEndAreShownAsOne) {
  const auto escaped = tokenizer_of_json(test::byte_level_json(), "json:");
  const auto words = test::sentencepiece_tokenizer();
  const auto shown = [](const tokenizer::Tokenizer& tokenizer, std::string_view text, int lost) {
    auto ids = tokenizer.encode(text);
    ids.resize(ids.size() - lost);
    TextStream stream(tokenizer, {});
    std::string out;
    for (const int64_t id : ids) out += stream.add(id);
    return out + stream.finish();
  };
  EXPECT_EQ(shown(*escaped, "a\xf0\x9f\x98\x80", 6), "a\xef\xbf\xbd");
  EXPECT_EQ(shown(*words, "the\xf0\x9f\x98\x80", 1), "the\xef\xbf\xbd");
}

// decode() sees all bytes of a run before it shows the first, a stream does not.
TEST(TextStream, BrokenBytesAreShownByMaximalParts) {
  const auto tokenizer = tokenizer_of_json(test::metaspace_json());
  const auto encoded = tokenizer->encode("\xf0\x9f\x98\x80");
  ASSERT_GE(encoded.size(), 4U);
  const int64_t zero = encoded[encoded.size() - 4] - 0xf0;  // bytes have successive ids
  const auto expect = [&](std::string_view bytes, const char* streamed, const char* decoded) {
    std::vector<int64_t> ids;
    for (const unsigned char byte : bytes) ids.push_back(zero + byte);
    TextStream stream(*tokenizer, {});
    std::string out;
    for (const int64_t id : ids) out += stream.add(id);
    EXPECT_EQ(out + stream.finish(), streamed);
    EXPECT_EQ(tokenizer->decode(ids), decoded);
  };
  expect("\xe2\x82\xac", "\u20ac", "\u20ac");
  expect("\x80\xe2\x82\xac", "\ufffd\u20ac", "\ufffd\ufffd\ufffd\ufffd");
  expect("\xe2\x82\xac\x80", "\u20ac\ufffd", "\ufffd\ufffd\ufffd\ufffd");
  expect("\xe2\x82", "\ufffd", "\ufffd\ufffd");
}

TEST(TextStream, StopStringsEndTheTextBeforeThem) {
  EXPECT_EQ(pieces("one END two", {"END"}),
            (Pieces{"o", "n", "e", " ", "", "", "", "", "", "", "", ""}));
  EXPECT_EQ(joined(pieces("one END two", {"END"})), "one ");
  // Held back while it may become a stop string, and given when it did not.
  EXPECT_EQ(pieces("ENE", {"END"}), (Pieces{"", "", "EN", "E"}));
  EXPECT_EQ(joined(pieces("aabaac", {"aac"})), "aab");
  EXPECT_EQ(joined(pieces("x\n\ny", {"zz", "\n\n", "\n\ny"})), "x");
  EXPECT_EQ(joined(pieces("xaby", {"ab", "b"})), "x");  // both end with one character
  EXPECT_EQ(joined(pieces("xaby", {"b", "ab"})), "x");
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
  for (const char byte : {'\xf0', '\x80'}) {
    const auto one = words->encode("\xf0\x9f\x98\x80");
    EXPECT_EQ(text_of_token(*words, byte == '\xf0' ? one[one.size() - 4] : one.back()),
              std::string(1, byte));
  }
}

TEST(TokenBytes, SpecialTokensAreNothingOrTheirNames) {
  const tokenizer::ByteTokenizer tokenizer;
  constexpr auto kEos = tokenizer::ByteTokenizer::kEos;
  EXPECT_EQ(TokenBytes(tokenizer, /*keep_special=*/true).add(kEos), "<eos>");
  EXPECT_EQ(TokenBytes(tokenizer, /*keep_special=*/false).add(kEos), "");
}

TEST(TextStream, RejectsAnEmptyStopString) {
  const tokenizer::ByteTokenizer tokenizer;
  EXPECT_THROW(TextStream(tokenizer, {.stop = {"a", ""}}), Error);
}

}  // namespace
}  // namespace reynard::generation
