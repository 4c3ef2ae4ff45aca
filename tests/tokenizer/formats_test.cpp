// What each format means, on small made-up vocabularies. That real ones give the ids of the
// libraries that define them is the business of parity_test.py.

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/pre_tokenizer.h"
#include "reynard/tokenizer/regex.h"
#include "reynard/tokenizer/saved_tokenizer.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace reynard;
using nlohmann::json;
using test::error_of;
using tokenizer::Tokenizer;

class Formats : public testing::Test {
 protected:
  std::unique_ptr<Tokenizer> open(const std::string& file,
                                  std::string_view contents,
                                  const std::string& prefix = "") {
    test::write_file(folder_ / file, contents);
    return tokenizer::make_tokenizer(prefix + (folder_ / file).string());
  }
  std::unique_ptr<Tokenizer> open_json(const json& contents) {
    return open("tokenizer.json", contents.dump());
  }
  test::TempDir folder_;
};

std::vector<int64_t> wide(const std::vector<int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

TEST_F(Formats, ByteLevelJson) {
  const auto gpt2 = open_json(test::byte_level_json());
  EXPECT_EQ(gpt2->vocab_size(), 270);
  EXPECT_EQ(gpt2->eos(), 269);
  EXPECT_EQ(gpt2->bos(), 269);  // the only special token
  EXPECT_EQ(gpt2->encode("hello the<|endoftext|>\xc3\xa9!"),
            (std::vector<int32_t>{262, 258, 269, 267, '!'}));
  EXPECT_EQ(gpt2->decode(std::vector<int64_t>{262, 258, 269}), "hello the");
  EXPECT_EQ(gpt2->decode(std::vector<int64_t>{262, 269}, {.keep_special = true}),
            "hello<|endoftext|>");
  EXPECT_EQ(gpt2->encode("\xff"), (std::vector<int32_t>{0xef, 0xbf, 0xbd}));  // U+FFFD
  for (const std::string& text : test::difficult_texts()) {
    if (text.find("<|endoftext|>") == std::string::npos) {
      EXPECT_EQ(gpt2->decode(wide(gpt2->encode(text))), text);
    }
  }
}

TEST_F(Formats, MetaspaceJsonWithByteFallback) {
  const auto llama = open_json(test::metaspace_json());
  EXPECT_EQ(llama->bos(), 1);
  const std::vector<int32_t> ids = llama->encode("the\xe2\x82\xac", {.add_template = true});
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 268, 3 + 0xe2, 3 + 0x82, 3 + 0xac}));
  EXPECT_EQ(llama->encode("the"), (std::vector<int32_t>{268}));  // no template
  EXPECT_EQ(llama->decode(wide(ids)), "the\xe2\x82\xac");
  EXPECT_EQ(llama->decode(std::vector<int64_t>{3 + 0xe2, 3 + 0x82, 268}),
            "\xef\xbf\xbd\xef\xbf\xbd the");  // bytes that are no character
}

// As the package `tokenizers` decodes: only where no decoder is given a blank is put between
// tokens.
TEST_F(Formats, ADecoderWithoutStepsConcatenates) {
  json file = test::metaspace_json();
  const auto decoded = [&](const json& decoder) {
    file["decoder"] = decoder;
    return open_json(file)->decode(std::vector<int64_t>{268, 263});
  };
  const json empty = {{"type", "Sequence"}, {"decoders", json::array()}};
  EXPECT_EQ(decoded(nullptr), "\u2581the l");
  EXPECT_EQ(decoded(empty), "\u2581thel");
  EXPECT_EQ(decoded({{"type", "Sequence"}, {"decoders", {empty}}}), "\u2581thel");
}

TEST_F(Formats, TiktokenIsTheSameVocabularyAsItsJson) {
  const auto ranks = open("x.tiktoken", test::tiktoken_ranks(), "gpt2:");
  const auto from_json = open_json(test::byte_level_json());
  EXPECT_EQ(ranks->eos(), 269);
  for (const std::string& text : test::difficult_texts()) {
    EXPECT_EQ(ranks->encode(text), from_json->encode(text)) << text;
  }
  EXPECT_EQ(error_of([&] {
              open("x.tiktoken", test::tiktoken_ranks());
            }).substr((folder_ / "x.tiktoken").string().size()),
            ": 269 ranks are no vocabulary whose splitting pattern is known: 50256 (GPT-2), 100256 "
            "(cl100k), 128000 (Llama-3), 151643 (Qwen); write gpt2:, llama3: or qwen2: before the "
            "name of the file");
  EXPECT_NE(error_of([&] { open("x.tiktoken", "YQ== 0\nYg== 0\n", "gpt2:"); }).find("rank 0 again"),
            std::string::npos);
  EXPECT_NE(error_of([&] { open("x.tiktoken", "YQ== 0\nYg== x\n", "gpt2:"); }).find("line 2"),
            std::string::npos);
  EXPECT_NE(error_of([&] { open("x.tiktoken", "YQ== 0\n==== 1\n", "gpt2:"); }).find("line 2"),
            std::string::npos);
  EXPECT_NE(error_of([&] { open("x.tiktoken", "YQ== 0\n", "gpt2:"); }).find("the byte 0"),
            std::string::npos);
}

TEST_F(Formats, SentencePieceModel) {
  const auto model = open("tokenizer.model", test::sentencepiece_model());
  EXPECT_EQ(model->bos(), 1);
  EXPECT_EQ(model->eos(), 2);
  const std::vector<int32_t> ids = model->encode("hello the\xff");
  EXPECT_EQ(ids, (std::vector<int32_t>{264, 261, 3 + 0xef, 3 + 0xbf, 3 + 0xbd}));  // U+FFFD
  EXPECT_EQ(model->decode(wide(ids)), "hello the\xef\xbf\xbd");
  EXPECT_EQ(model->decode(std::vector<int64_t>{1, 264, 2}, {.keep_special = true}), "<s>hello</s>");
  EXPECT_EQ(model->decode(std::vector<int64_t>{1, 264, 2}), "hello");
  EXPECT_EQ(model->encode("  he"), (std::vector<int32_t>{268, 268, 263}));
  const auto trimmed =
      open("tokenizer.model", test::sentencepiece_model({.remove_extra_whitespaces = true}));
  EXPECT_EQ(trimmed->encode("  he  "), (std::vector<int32_t>{263}));
  const auto unknown = open("tokenizer.model", test::sentencepiece_model({.byte_fallback = false}));
  EXPECT_EQ(unknown->encode("xyt"), (std::vector<int32_t>{12, 0, 13}));  // one for both
  const auto marked = open("tokenizer.model", test::sentencepiece_model({.user_defined = {"<m>"}}));
  EXPECT_EQ(marked->encode("<m>he"), (std::vector<int32_t>{269, 3, 261}));
}

TEST_F(Formats, JsonEscapedTextAsInLongCrawl64) {
  open_json(test::byte_level_json());
  const auto plain = tokenizer::make_tokenizer((folder_ / "tokenizer.json").string());
  const auto escaped = tokenizer::make_tokenizer("json:" + (folder_ / "tokenizer.json").string());
  EXPECT_EQ(escaped->encode("the\n\"\xc3\xa9\xf0\x9f\x98\x80"),
            plain->encode("the\\n\\\"\\u00e9\\ud83d\\ude00"));
  for (const std::string& text : test::difficult_texts()) {
    if (text.find("<|endoftext|>") == std::string::npos) {
      EXPECT_EQ(escaped->decode(wide(escaped->encode(text))), text);
    }
  }
  // What is no JSON string is read as Python's unicode_escape reads it.
  EXPECT_EQ(escaped->decode(wide(plain->encode("a\\x41\\q"))), "aA\\q");
}

TEST_F(Formats, WhatStandsBehindAPrefixIsAFile) {
  for (const char* name : {"json:byte", "llama3:byte", "json:gpt2:none"}) {
    const std::string said = error_of([&] { tokenizer::make_tokenizer(name); });
    const std::string prefix(name, std::string_view(name).rfind(':') + 1);
    EXPECT_EQ(
        said,
        fmt::format(
            "tokenizer = \"{}\"; expected a file or folder that exists behind {}", name, prefix));
  }
}

TEST_F(Formats, FoldersAreFoundByThemselves) {
  test::write_file(folder_ / "tokenizer.json", test::byte_level_json().dump());
  test::write_file(folder_ / "tokenizer_config.json",
                   R"({"bos_token": {"content": "<|endoftext|>"}, "eos_token": "!"})");
  const auto tokenizer = tokenizer::make_tokenizer(folder_.path().string());
  EXPECT_EQ(tokenizer->bos(), 269);
  EXPECT_EQ(tokenizer->eos(), '!');
  test::write_file(folder_ / "tokenizer_config.json", R"({"bos_token": null})");
  EXPECT_EQ(tokenizer::make_tokenizer(folder_.path().string())->bos(), std::nullopt);
  const test::TempDir run;
  std::filesystem::create_directory(run / "model");
  std::filesystem::copy(folder_ / "tokenizer.json", run / "model");
  EXPECT_EQ(tokenizer::make_tokenizer(run.path().string())->vocab_size(), tokenizer->vocab_size());
  const test::TempDir empty;
  EXPECT_NE(error_of([&] {
              tokenizer::make_tokenizer(empty.path().string());
            }).find("holds no tokenizer: tokenizer.json, tokenizer.model"),
            std::string::npos);
  // GPT-2's first format.
  const json parts = test::byte_level_json();
  std::string merges = "#version: 0.2\n";
  for (const json& pair : parts["model"]["merges"]) {
    merges += pair[0].get<std::string>() + " " + pair[1].get<std::string>() + "\n";
  }
  json vocab = parts["model"]["vocab"];
  vocab["<|endoftext|>"] = 269;
  test::write_file(empty / "vocab.json", vocab.dump());
  test::write_file(empty / "merges.txt", merges);
  const auto old = tokenizer::make_tokenizer(empty.path().string());
  EXPECT_EQ(old->encode("hello the<|endoftext|>"), (std::vector<int32_t>{262, 258, 269}));
}

TEST_F(Formats, CopiesAreTheSameTokenizer) {
  test::write_file(folder_ / "a.tiktoken", test::tiktoken_ranks());
  test::write_file(folder_ / "b.json", test::byte_level_json().dump());
  test::write_file(folder_ / "c.model", test::sentencepiece_model());
  for (const std::string& name : {std::string("byte"),
                                  "gpt2:" + (folder_ / "a.tiktoken").string(),
                                  "json:llama3:" + (folder_ / "a.tiktoken").string(),
                                  "json:" + (folder_ / "b.json").string(),
                                  (folder_ / "c.model").string()}) {
    const test::TempDir copy;
    const auto files = tokenizer::saved_files(name);
    for (const auto& file : files) test::write_file(copy / file.name, file.contents);
    const auto original = tokenizer::make_tokenizer(name);
    const auto copied = tokenizer::make_tokenizer(copy.path().string());
    for (const std::string& text : test::difficult_texts()) {
      EXPECT_EQ(copied->encode(text), original->encode(text)) << name;
    }
    const auto again = tokenizer::saved_files(copy.path().string());
    EXPECT_EQ(tokenizer::fingerprint(again), tokenizer::fingerprint(files));
  }
  EXPECT_NE(tokenizer::fingerprint(tokenizer::saved_files("byte")),
            tokenizer::fingerprint(tokenizer::saved_files((folder_ / "b.json").string())));
}

TEST_F(Formats, WhatIsNotSupportedIsNamed) {
  const json good = test::byte_level_json();
  const auto expect = [&](const std::function<void(json&)>& change, const std::string& part) {
    json file = good;
    change(file);
    const std::string message = error_of([&] { open_json(file); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("tokenizer.json"), std::string::npos) << message;
  };
  expect([](json& file) { file["model"]["type"] = "Unigram"; },
         "the model \"Unigram\" is not supported; expected BPE");
  expect(
      [](json& file) {
        file["normalizer"] = {{"type", "BertNormalizer"}};
      },
      "the normalizer \"BertNormalizer\" is not supported");
  expect(
      [](json& file) {
        file["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
      },
      "the pre-tokenizer \"BertPreTokenizer\" is not supported");
  expect(
      [](json& file) {
        file["decoder"] = {{"type", "WordPiece"}};
      },
      "the decoder \"WordPiece\" is not supported");
  expect(
      [](json& file) {
        file["post_processor"] = {{"type", "Other"}};
      },
      "the post-processor \"Other\" is not supported");
  for (const bool templated : {false, true}) {
    expect(
        [&](json& file) {
          const json ends = {{"type", "BertProcessing"}, {"cls", {"!", 33}}, {"sep", {"!", 33}}};
          json first = ends;
          if (templated) first = test::metaspace_json()["post_processor"];
          file["post_processor"] = {{"type", "Sequence"}, {"processors", {first, ends}}};
        },
        "the post-processor \"BertProcessing\" behind another that adds tokens is not supported");
  }
  for (const json& shortens :
       {json{{"type", "Prepend"}, {"prepend", "x"}},
        json{{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}},
        json{{"type", "Replace"}, {"pattern", {{"String", "x"}}}, {"content", ""}},
        json{{"type", "Replace"}, {"pattern", {{"Regex", "^ +"}}}, {"content", ""}}}) {
    expect(
        [&](json& file) {
          file["normalizer"] = shortens;
          file["pre_tokenizer"] = {
              {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
        },
        "before Metaspace with prepend_scheme \"first\" is not supported");
  }
  expect([](json& file) { file["model"]["dropout"] = 0.1; }, "\"dropout\" is not supported");
  expect([](json& file) { file["model"]["end_of_word_suffix"] = "</w>"; },
         "\"end_of_word_suffix\" is not supported");
  expect([](json& file) { file["model"]["vocab"]["he"] = 17; }, "two tokens have the id 17");
  expect([](json& file) { file["model"]["merges"].push_back("q z"); }, "which is not in vocab");
  expect([](json& file) { file["added_tokens"][0]["id"] = 500; }, "follow one by one");
  expect(
      [](json& file) {
        file["pre_tokenizer"] = {
            {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
      },
      "the regular expression \"(a\" cannot be used");
  const auto expect_error =
      [&](const std::string& file, const std::string& text, const char* part) {
        const std::string message = error_of([&] { open(file, text); });
        EXPECT_NE(message.find(part), std::string::npos) << message;
      };
  expect_error("tokenizer.json", std::string(100000, '['), "is no tokenizer");
  expect_error("tokenizer.json", "{\"a\":" + std::string(100000, '['), "nested deeper");
  expect_error("tokenizer.json", "{\"a\":", "is not JSON");
  expect_error("tokenizer.model", std::string("\n\x03") + "abc", "tokenizer.model");
  EXPECT_NE(error_of([] { tokenizer::make_tokenizer("bpe"); }).find("\"bpe\""), std::string::npos);
}

// U+11DE8 came with Unicode 17, which the package's digits follow and its patterns do not yet.
TEST(Digits, AreThoseOfUnicode17) {
  tokenizer::PreTokenizer digits;
  digits.add(tokenizer::DigitSplit{.each = true});
  tokenizer::TextStore store;
  std::vector<std::string_view> pieces;
  digits.split(store.keep("a\xf0\x91\xb7\xa8z1"), /*at_begin=*/true, store, pieces);
  EXPECT_EQ(pieces, (std::vector<std::string_view>{"a", "\xf0\x91\xb7\xa8", "z", "1"}));
}

// Only what begins the text is marked, not what a removed space left at the front, but what a
// removed mark did.
TEST(Metaspace, FirstIsWhatBeginsTheText) {
  tokenizer::PreTokenizer words;
  words.add(tokenizer::RegexSplit{.regex = tokenizer::Regex(" "),
                                  .behavior = tokenizer::SplitBehavior::kRemoved});
  words.add(tokenizer::MetaspaceSplit{.replacement = "\u2581",
                                      .prepend = tokenizer::MetaspaceSplit::Prepend::kFirst});
  tokenizer::TextStore store;
  std::vector<std::string_view> pieces;
  words.split(store.keep("a b"), /*at_begin=*/true, store, pieces);
  EXPECT_EQ(pieces, (std::vector<std::string_view>{"\u2581a", "b"}));
  words.split(store.keep(" a b"), /*at_begin=*/true, store, pieces);
  EXPECT_EQ(pieces, (std::vector<std::string_view>{"a", "b"}));
  tokenizer::PreTokenizer twice;
  const tokenizer::MetaspaceSplit first{.replacement = "\u2581",
                                        .prepend = tokenizer::MetaspaceSplit::Prepend::kFirst};
  twice.add(first);
  twice.add(tokenizer::RegexSplit{.regex = tokenizer::Regex("\u2581"),
                                  .behavior = tokenizer::SplitBehavior::kRemoved});
  twice.add(first);
  twice.split(store.keep("a b"), /*at_begin=*/true, store, pieces);
  EXPECT_EQ(pieces, (std::vector<std::string_view>{"\u2581a", "b"}));
}

// What is matched, between bars.
std::string matches(std::string_view pattern, std::string_view text) {
  std::string found = "|";
  tokenizer::Regex(pattern).for_each_match(text, [&](size_t begin, size_t end) {
    found += fmt::format("{}|", text.substr(begin, end - begin));
  });
  return found;
}

// What PCRE2 takes for something else; as the package `tokenizers` matches.
TEST(Regex, MeansWhatOnigurumaMeans) {
  EXPECT_EQ(matches(R"(\p{N}{1,3}+)", "123456"), "|123456|");
  EXPECT_EQ(matches("x{1}+|y{1,}+z", "xx yyz"), "|xx|yyz|");
  EXPECT_EQ(matches("a{,2}b", "aaab b"), "|aab|b|");
  EXPECT_EQ(matches("a{2,3}?", "aaaaaa"), "|aa|aa|aa|");
  EXPECT_EQ(matches("a{,}|b{1, 2}|c{", "a{,} b{1, 2} c{"), "|a{,}|b{1, 2}|c{|");
  EXPECT_EQ(matches(R"(\v|[\v])", "\v\n\u0085"), "|\v|");
  EXPECT_EQ(matches("(?m:a.)|b.", "a\nb\n"), "|a\n|");
  EXPECT_EQ(matches("(?m)a.", "a\n"), "|a\n|");
  EXPECT_EQ(matches("(?mi-x:A.)", "a\n"), "|a\n|");
  EXPECT_EQ(matches(R"(a\B.)", "a\u00b2 a\u0345 a\u203f a\u00b7"), "|a\u00b2|a\u0345|a\u203f|");
  EXPECT_EQ(matches(R"(a\b.)", "a\u00b2 a\u0345 a\u203f a\u00b7"), "|a\u00b7|");
  EXPECT_EQ(matches(R"(\w)", "\u00b2"), "|\u00b2|");
  EXPECT_EQ(matches(R"([\w]|\W)", "\u00b2"), "|");
  EXPECT_EQ(matches(R"(\x{41}\x42)", "AB"), "|AB|");
}

TEST(Regex, SetsOfOtherCharacters) {
  EXPECT_EQ(matches(R"([^\W\d_]+)", "\u0939\u093f\u0928\u094d\u0926\u0940 a_1"),
            "|\u0939\u093f\u0928\u094d\u0926\u0940|a|");
  EXPECT_EQ(matches(R"([\W]+)", "a\u0345, b\u00b2"), "|, |\u00b2|");
  EXPECT_EQ(matches(R"([\H]+)", "hello ab"), "|h|llo |");
  EXPECT_EQ(matches(R"([\P{L}x]+)", "a1x\u1c89b"), "|1x|");  // a letter since Unicode 16
  EXPECT_EQ(matches(R"([\D]+)", "a\U00010d40b"), "|a|b|");
}

TEST(Regex, PropertiesOfCharacters) {
  EXPECT_EQ(matches(R"(\p{Han}+)", "\u6f22\u5b57\u3001\u304b\u3002"), "|\u6f22\u5b57|");
  EXPECT_EQ(matches(R"([\p{Greek}]+)", "\u0391\u00b7\u0345"), "|\u0391|");
  EXPECT_EQ(matches(R"(\p{hira_gana})", "\u304b\u3001\U0001b132"), "|\u304b|\U0001b132|");
  EXPECT_EQ(matches(R"(\p{lu})", "\u1c89\u1c8a"), "|\u1c89|");
  EXPECT_EQ(matches(R"(\p{Mn}|\p{Cn})", "\u0897\U0001171e\u1c89\u0378"), "|\u0897|\u0378|");
  EXPECT_EQ(matches(R"(\p{^Sm}|\P{No})", "+"), "|+|");
}

// Only characters with upper and lower case are otherwise there.
TEST(Regex, CaselessCharactersWithoutCase) {
  EXPECT_EQ(matches("(?i:['\u2019]s|['\u2019]t|['\u2019]re)", "\u2019S 'RE"), "|\u2019S|'RE|");
  EXPECT_EQ(matches("(?i)'s|\u2019s|\\p{L}+", "a\u2019S"), "|a|\u2019S|");
  EXPECT_EQ(matches("(?i:[\u201c\u201d]?a)", "\u201cA"), "|\u201cA|");
  EXPECT_EQ(matches("(?i:[\u4e00-\u9fa5]+)", "a\u4e01"), "|\u4e01|");
  EXPECT_EQ(matches("(?i:[\u3002\uff0c]a)", "\uff0cA"), "|\uff0cA|");
  EXPECT_EQ(matches(R"((?i:\p{Lo}+))", "a\u00aa"), "|\u00aa|");
  EXPECT_EQ(matches(R"((?i:\p{Lu}))", "aB"), "|B|");
  EXPECT_EQ(matches(R"((?i:\x{27}s|\x41))", "'S a"), "|'S|a|");
  EXPECT_EQ(matches(R"((?i:\p{Thai}+a))", "\u0e01A"), "|\u0e01A|");
  EXPECT_EQ(matches(R"((?i:\p{Latin}+))", "aB1"), "|aB|");
  // The combining iota below is another case of the letter iota.
  EXPECT_EQ(matches(R"((?i:[^\p{L}]+))", "a\u0345, b"), "|, |");
  EXPECT_EQ(matches(R"((?i:[\w]+))", "aB"), "|aB|");
}

TEST(Regex, PatternsOfKnownModels) {
  constexpr const char* kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
  EXPECT_EQ(matches(kContractions, "'S 'lL '\u017f"), "|'S|'lL|'\u017f|");
  EXPECT_EQ(matches("'(?i:[sdmt]|ll|ve|re)", "'S 'Ll"), "|'S|'Ll|");
  EXPECT_EQ(matches("(?i)'s|'t", "'S 'T"), "|'S|'T|");
  EXPECT_EQ(matches(R"([^\r\n\p{L}\p{N}]?+\p{L}++)", " ab cd"), "| ab| cd|");
}

TEST(Regex, RefusesWhatCannotBeTranslated) {
  const auto refused = [](const char* pattern, const char* what) {
    try {
      tokenizer::Regex{pattern};
      ADD_FAILURE() << pattern;
    } catch (const Error& error) {
      const std::string expected = fmt::format("uses {}, which is not supported", what);
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  };
  refused("a{2}?", "{2}?");
  refused("a{2}+", "{2}+");
  refused("a{1,2}+?", "{1,2}+?");
  refused("(?s:a)", "(?s:");
  refused("a(?i)b|c", "(?i) behind the beginning");
  refused("(?i:\u00e9)", "\u00e9 in (?i)");
  refused("(?i:(a)[\u00e9])", "\u00e9 in (?i)");
  refused("(?i:miSs)", "Ss in (?i)");
  refused("(?i:\u00df)", "\u00df in (?i)");
  refused("(?i:\u02bcn)", "\u02bc in (?i)");
  refused("(?i:f(?:f))", "ff in (?i)");
  refused("(?i:(?:af){1}(?#c)i)", "fi in (?i)");
  refused("a{2}(?#c)?", "a quantifier behind what is skipped");
  refused("(?ix: s t)", "st in (?i)");
  refused(R"((?i:s\x73))", "ss in (?i)");
  refused(R"((?i:s\163))", R"(\163 in (?i))");
  refused(R"((?i:[\p{L}]))", R"([\p{L}] in (?i))");
  refused("(?i:[ -\u4e00])", "[ -\u4e00] in (?i)");
  refused(R"(\pL+)", R"(\pL)");
  refused(R"((a)\g1)", R"(\g1)");
  refused(R"([\N{U+41}])", R"(\N{)");
  refused(R"(\X)", R"(\X)");
  refused(R"(\p{Xan})", R"(\p{Xan})");
  refused(R"(\p{sc=Han})", R"(\p{sc=Han})");
  refused(R"(\p{Lowercase})", R"(\p{Lowercase})");
  refused(R"((?i:\x{df}))", R"(\x{df} in (?i))");
  refused(R"(\V)", R"(\V)");
  refused("[a&&b]", "&& inside [...]");
  refused("[a[b]]", "[ inside [...]");
  refused("[[:alpha:]]", "[:...:] inside [...]");
  EXPECT_EQ(matches("(?i:a(?-i:\u00e9))\u00e9", "A\u00e9\u00e9"), "|A\u00e9\u00e9|");
}

}  // namespace
