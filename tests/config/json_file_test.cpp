#include "reynard/config/json_file.h"

#include "reynard/config/text_file.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

namespace reynard::config {
namespace {

using test::error_of;

TEST(JsonFile, BracketsInStringsAreNoNesting) {
  EXPECT_FALSE(is_nested_deeper(R"({"a": ["[[[\"[[[", [1]]})", 3));
  EXPECT_TRUE(is_nested_deeper(R"({"a": ["[[[\"[[[", [1]]})", 2));
  EXPECT_FALSE(is_nested_deeper("[[1], [2], [3]]", 2));
}

TEST(JsonFile, WhatIsNestedTooDeepIsNoValue) {
  const auto nested = [](int depth) {
    return std::string(depth, '[') + "1" + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_json_text(nested(kMaxJsonDepth)).is_array());
  EXPECT_TRUE(parse_json_text(nested(kMaxJsonDepth + 1)).is_discarded());
  EXPECT_TRUE(parse_json_text(nested(1'000'000)).is_discarded());
  EXPECT_TRUE(parse_json_text("{\"a\": 1").is_discarded());
}

TEST(JsonFile, AKeyOfOneObjectIsNotRepeatedInAnother) {
  EXPECT_EQ(repeated_key(R"({"a": {"b": 1, "c": [{"b": 1}, {"b": 2}]}, "b": {"a": 3}})"),
            std::nullopt);
  EXPECT_EQ(repeated_key(R"({"a": {"b": 1}, "c": [{"\u0062": 1, "b": 2}]})"), "b");
  EXPECT_EQ(repeated_key(R"({"a": 1, "a": )"), std::nullopt);
}

TEST(JsonFile, MistakesHaveAPlaceAndAReason) {
  const std::string rest(100'000, 'x');
  for (const auto& [text, mistake] :
       {std::pair<std::string, const char*>{"{\"a\": 1}", ""},
        {"", "line 1, column 1: unexpected end of input; expected '[', '{', or a literal"},
        {"{\"a\": 1", "line 1, column 8: unexpected end of input; expected '}'"},
        {"{\"a\": 1,}", "line 1, column 9: unexpected '}'; expected string literal"},
        {"{\n  a: 1}", "line 2, column 3: invalid literal"},
        {"{\"a\": 'x'}", "line 1, column 7: invalid literal"},
        {"{\"a\": 1} {}", "line 1, column 10: unexpected '{'; expected end of input"},
        {"{\"a\": \"" + rest, "line 1, column 100008: invalid string: missing closing quote"},
        {"\"\xff" + rest + "\"", "line 1, column 2: invalid string: ill-formed UTF-8 byte"},
        {"1e" + std::string(100'000, '9'),
         "the number '1e9999999999999999999999999999999999999... is too large"},
        {std::string("{}\0{", 4), "line 1, column 3: a zero byte"},
        {std::string("\n\0", 2), "line 2, column 1: a zero byte"},
        {std::string("[,\0", 3),
         "line 1, column 2: unexpected ','; expected '[', '{', or a literal"}}) {
    EXPECT_EQ(json_mistake(text), mistake) << text.substr(0, 40);
    EXPECT_EQ(parse_json_text(text).is_discarded(), !std::string_view(mistake).empty());
  }
}

TEST(JsonFile, ErrorsNameTheFile) {
  const test::TempDir folder;
  const auto file = folder / "a.json";
  const auto error = [&](const std::string& text, uintmax_t max_bytes = 100) {
    test::write_file(file, text);
    return error_of([&] { read_json_object(file, max_bytes); });
  };
  EXPECT_EQ(error("{\"a\": 1}"), "no error");
  EXPECT_EQ(read_json_object(file).at("a"), 1);
  EXPECT_EQ(error("[1]"), file.string() + ": is not a JSON object");
  EXPECT_EQ(error("{\"a\": " + std::string(90, '[')), file.string() + ": is not a JSON object");
  EXPECT_EQ(error("{\"a\": 1,\n \"b\": tru}"),
            file.string() + ": is not a JSON object: line 2, column 10: invalid literal");
  EXPECT_EQ(error("{\"a\": 1e999}"),
            file.string() + ": is not a JSON object: the number '1e999' is too large");
  EXPECT_EQ(error(std::string(101, ' ')),
            file.string() + ": has more than 100 bytes, the most expected");
  EXPECT_NE(error_of([&] { read_json_object(folder / "none"); }).find("none: cannot be read"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_text_file(folder.path(), 1); }).find("is a folder"),
            std::string::npos);
}

TEST(JsonFile, NullStandsForWhateverIsNoObject) {
  const test::TempDir folder;
  EXPECT_TRUE(json_object_or_null(folder / "none").is_null());
  EXPECT_TRUE(json_object_or_null(folder.path()).is_null());
  test::write_file(folder / "a.json", "[1]");
  EXPECT_TRUE(json_object_or_null(folder / "a.json").is_null());
  test::write_file(folder / "a.json", "{\"a\": 1}");
  EXPECT_TRUE(json_object_or_null(folder / "a.json", 7).is_null());
  EXPECT_EQ(json_object_or_null(folder / "a.json", 8).at("a"), 1);
}

TEST(JsonNumbers, WhatIsNoneIsNull) {
  EXPECT_EQ(or_null(std::optional<int64_t>(3)), 3);
  EXPECT_TRUE(or_null(std::optional<double>()).is_null());
  EXPECT_EQ(number_or_null(0.5), 0.5);
  EXPECT_TRUE(number_or_null(NAN).is_null());
  EXPECT_TRUE(number_or_null(-INFINITY).is_null());
}

TEST(JsonText, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(json_text(nlohmann::json{{"b", "\xff"}, {"a", "\u00e9"}}),
            "{\"a\":\"\u00e9\",\"b\":\"\ufffd\"}");
  EXPECT_EQ(json_text(nlohmann::ordered_json{{"b", 1}, {"a", 2}}, 1),
            "{\n \"b\": 1,\n \"a\": 2\n}");
  EXPECT_EQ(ascii_json_text("\u00e9\xff"), R"("\u00e9\ufffd")");
}

}  // namespace
}  // namespace reynard::config
