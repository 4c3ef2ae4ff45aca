#include "reynard/tokenizer/tokenizer.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace {

using namespace reynard;
using tokenizer::ByteTokenizer;
using tokenizer::Utf8Validator;

TEST(ByteTokenizer, IdsAreTheBytesOfTheText) {
  const ByteTokenizer bytes;
  EXPECT_EQ(bytes.encode("h\xc3\xa9"), (std::vector<int32_t>{'h', 0xc3, 0xa9}));
  const std::vector<int64_t> ids{256, 'h', 0xc3, 0xa9, 257};
  EXPECT_EQ(bytes.decode(ids), "h\xc3\xa9");  // BOS and EOS have no text
  EXPECT_EQ(bytes.vocab_size(), 258);
}

TEST(ByteTokenizer, RejectsIdsOutsideTheVocabulary) {
  const ByteTokenizer bytes;
  for (const int64_t bad : {int64_t{-1}, int64_t{258}, int64_t{1} << 40}) {
    const std::vector<int64_t> ids{0, bad};
    EXPECT_THROW(bytes.decode(ids), Error) << bad;
  }
}

TEST(ByteTokenizer, DecodeInvertsEncode) {
  EXPECT_TRUE(rc::check([](const std::string& text) {
    const auto tokenizer = tokenizer::make_tokenizer("byte");
    const auto ids = tokenizer->encode(text);
    RC_ASSERT(tokenizer->decode(std::vector<int64_t>(ids.begin(), ids.end())) == text);
  }));
}

TEST(Tokenizer, UnknownNamesAreAnError) {
  EXPECT_THROW(tokenizer::make_tokenizer("bpe"), Error);
}

// Offset of the first bad sequence, or -1.
int64_t first_bad(std::string_view text) {
  Utf8Validator validator;
  if (!validator.feed(text) || !validator.finish()) return validator.position();
  return -1;
}

TEST(Utf8, AcceptsExactlyTheWellFormedSequences) {
  for (const char* good : {"",
                           "plain",
                           "\x7f",
                           "\xc2\x80",
                           "\xdf\xbf",
                           "\xe0\xa0\x80",
                           "\xed\x9f\xbf",
                           "\xee\x80\x80",
                           "\xef\xbf\xbf",
                           "\xf0\x90\x80\x80",
                           "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(first_bad(good), -1) << testing::PrintToString(good);
  }
  for (const char* bad : {"\x80",
                          "\xbf",
                          "\xc0\x80",
                          "\xc1\xbf",
                          "\xe0\x9f\xbf",
                          "\xed\xa0\x80",
                          "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80",
                          "\xf5\x80\x80\x80",
                          "\xff",
                          "\xc2",
                          "\xe2\x82",
                          "\xf0\x9f\x98",
                          "\xc2\x41",
                          "\xe2\x41"}) {
    EXPECT_EQ(first_bad(std::string("0123456789") + bad), 10) << testing::PrintToString(bad);
  }
}

TEST(Utf8, TheAnswerDoesNotDependOnHowTheTextIsCut) {
  EXPECT_TRUE(rc::check([] {
    const auto piece = rc::gen::element<std::string>(
        "a", "abcdefgh", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xff", "\xe2\x82");
    std::string text;
    const auto count = *rc::gen::inRange(0, 12);
    for (int i = 0; i < count; ++i) text += *piece;
    Utf8Validator whole;
    Utf8Validator cut;
    const bool good = whole.feed(text);
    bool good_cut = true;
    for (std::size_t at = 0; at < text.size() && good_cut;) {
      const auto size = *rc::gen::inRange<std::size_t>(1, 5);
      good_cut = cut.feed(std::string_view(text).substr(at, size));
      at += size;
    }
    RC_ASSERT(good == good_cut);
    RC_ASSERT(whole.position() == cut.position());
    RC_ASSERT(whole.finish() == cut.finish());
    RC_ASSERT(first_bad(tokenizer::displayable(text)) == -1);
    if (first_bad(text) == -1) RC_ASSERT(tokenizer::displayable(text) == text);
  }));
}

TEST(Utf8, CharactersAreWholeOrCutOff) {
  EXPECT_EQ(tokenizer::whole_characters("a\xe2\x82\xac"), 4U);
  EXPECT_EQ(tokenizer::whole_characters("a\xe2\x82"), 1U);
  EXPECT_EQ(tokenizer::whole_characters("a\xf0\x9f\xa6"), 1U);
  EXPECT_EQ(tokenizer::whole_characters("a\x80"), 2U);  // ends no character
  EXPECT_EQ(tokenizer::whole_characters(""), 0U);
  EXPECT_EQ(tokenizer::first_characters("l\xc3\xa4uft", 0), "");
  EXPECT_EQ(tokenizer::first_characters("l\xc3\xa4uft", 2), "l\xc3\xa4");
  EXPECT_EQ(tokenizer::first_characters("l\xc3\xa4uft", 9), "l\xc3\xa4uft");
  EXPECT_EQ(tokenizer::num_characters("a\xe2\x82\xac\xc3\xa9"), 3);
}

TEST(Utf8, DisplayableReplacesEachBadPartOnce) {
  EXPECT_EQ(tokenizer::displayable("a\xff"
                                   "b"),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(tokenizer::displayable("\xf0\x9f\x98"), "\xef\xbf\xbd");  // cut off
  EXPECT_EQ(tokenizer::displayable("\xe2\x82"
                                   "A"),
            "\xef\xbf\xbd"
            "A");                                                             // one part
  EXPECT_EQ(tokenizer::displayable("\x80\x80"), "\xef\xbf\xbd\xef\xbf\xbd");  // two
}

}  // namespace
