#include "reynard/serving/text_offsets.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::serving {
namespace {

using Offsets = std::vector<int64_t>;

Offsets offsets(const std::string& text, const std::vector<std::string>& tokens) {
  return offsets_in(text, tokens);
}

TEST(TextOffsets, BytesOfACharacterBeginWhereItDoes) {
  EXPECT_EQ(offsets("a\u20acb", {"a", "\xe2", "\x82", "\xac", "b"}), (Offsets{0, 1, 1, 1, 2}));
  EXPECT_EQ(offsets("a\ufffdb", {"a", "\xe2", "b"}), (Offsets{0, 1, 2}));
  EXPECT_EQ(offsets("\u20ac", {"\xe2", "", "\x82\xac"}), (Offsets{0, 0, 0}));
  TextOffsets behind(3, "\xe2\x82");
  EXPECT_EQ(behind.add("\xac"), 3);
  EXPECT_EQ(behind.add("\xe2"), 4);
  EXPECT_EQ(behind.add("\xe2"), 5);
  EXPECT_EQ(behind.add(""), 5) << "before the character that is unfinished";
}

TEST(TextOffsets, BlanksThatTokensLackArePassed) {
  EXPECT_EQ(offsets("a  b", {"a", " b"}), (Offsets{0, 2}));
  EXPECT_EQ(offsets("  \u00e9  b ", {"\u00e9", " ", "b"}), (Offsets{2, 3, 5}));
  EXPECT_EQ(offsets("\n\n a", {"", "a"}), (Offsets{0, 3}));
  EXPECT_EQ(offsets("a  \u20ac", {"a", " ", "\xe2", "\x82", "\xac"}), (Offsets{0, 1, 3, 3, 3}));
  EXPECT_EQ(offsets("  ", {"", "x"}), (Offsets{0, 2}));
}

TEST(TextOffsets, TokensGoOnBehindLettersThatWereReplaced) {
  // A ligature, wide letters, a tab, letters of two signs, capitals.
  EXPECT_EQ(offsets("\ufb01x it", {"fi", "x", " it"}), (Offsets{0, 1, 2}));
  EXPECT_EQ(offsets("\uff21\uff22 d", {"A", "B", " d"}), (Offsets{0, 0, 2}));
  EXPECT_EQ(offsets("x\ty z", {"x", " y", " z"}), (Offsets{0, 1, 3}));
  EXPECT_EQ(offsets("e\u0301 x", {"\u00e9", " x"}), (Offsets{0, 2}));
  EXPECT_EQ(offsets("Hello World", {"hello", " world"}), (Offsets{0, 5}));
  // Nothing that is found again.
  const std::vector<std::string> none(1000, "x");
  const Offsets all = offsets(std::string(2000, 'y'), none);
  EXPECT_EQ(all.front(), 0);
  EXPECT_EQ(all.back(), 999);
}

}  // namespace
}  // namespace reynard::serving
