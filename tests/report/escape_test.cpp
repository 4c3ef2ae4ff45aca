// Text from outside in HTML, JSON and shell words, and numbers in figures.

#include "reynard/report/escape.h"

#include "reynard/report/figure_style.h"
#include "reynard/report/verdict.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace reynard::report {
namespace {

TEST(Escape, HtmlAndBrokenText) {
  EXPECT_EQ(html("a<b> & \"c\" 'd'\n\t"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;\n\t");
  EXPECT_EQ(html("\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x8A"), "\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA6\x8A");
  EXPECT_EQ(html("\xC3"), "\xEF\xBF\xBD");                          // cut short
  EXPECT_EQ(html("\xED\xA0\x80").find('\xED'), std::string::npos);  // surrogate
  EXPECT_EQ(html(std::string_view("\0\x1b", 2)), "\xE2\x90\x80\xE2\x90\x9b");
}

TEST(Escape, JsonInsideAScriptElement) {
  const json value{{"text", "</script><!-- \xFF"}};
  const std::string text = script_json(value);
  EXPECT_EQ(text.find('<'), std::string::npos);
  EXPECT_EQ(json::parse(text).at("text"), "</script><!-- \xEF\xBF\xBD");
}

TEST(Escape, ShellWords) {
  EXPECT_EQ(shell_word("runs/fox-1.toml"), "runs/fox-1.toml");
  EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(FigureStyle, Numbers) {
  EXPECT_EQ(grouped(16384), "16,384");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
  EXPECT_EQ(grouped(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(grouped(12), "12");
  EXPECT_EQ(grouped(1, "row"), "1 row");
  EXPECT_EQ(grouped(16384, "row"), "16,384 rows");
  EXPECT_EQ(with_unit(2712448), "2.71 M");
  EXPECT_EQ(rounded(1.23456789, 3), 1.23);
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(thinned(3, 10), (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(thinned(101, 3), (std::vector<size_t>{0, 50, 100}));
}

}  // namespace
}  // namespace reynard::report
