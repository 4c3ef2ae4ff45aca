// Tokens beside the vocabulary: which ones the files of a folder add, and where they are found.
// The ids are those of Transformers for folders of the same shape.

#include "reynard/tokenizer/added_tokens.h"
#include "reynard/tokenizer/saved_tokenizer.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace reynard;
using nlohmann::json;
using test::error_of;
using tokenizer::Tokenizer;
using Ids = std::vector<int32_t>;
using WideIds = std::vector<int64_t>;

constexpr int32_t kEnd = 269;        // <|endoftext|>, the last id of the byte-level vocabulary
constexpr int32_t kNumPieces = 275;  // of the SentencePiece model
constexpr int32_t kT = 269, kHe = 260, kThe = 261, kHello = 264;  // "t", "he", "▁the", "▁hello"

json special(const std::string& content) {
  return {{"content", content},
          {"special", true},
          {"normalized", false},
          {"lstrip", false},
          {"rstrip", false},
          {"single_word", false}};
}

// A folder whose files are written one by one; each is opened as a whole.
class Folder {
 public:
  Folder& add(const std::string& file, const json& contents) {
    test::write_file(folder_ / file, contents.dump());
    return *this;
  }
  // vocab.json and merges.txt; extra: tokens behind <|endoftext|>.
  Folder& add_gpt2(const std::vector<std::string>& extra = {}) {
    const json parts = test::byte_level_json();
    std::string merges = "#version: 0.2\n";
    for (const json& pair : parts["model"]["merges"]) {
      merges += pair[0].get<std::string>() + " " + pair[1].get<std::string>() + "\n";
    }
    json vocab = parts["model"]["vocab"];
    vocab["<|endoftext|>"] = kEnd;
    for (const std::string& token : extra) vocab[token] = vocab.size();
    test::write_file(folder_ / "merges.txt", merges);
    return add("vocab.json", vocab);
  }
  Folder& add_sentencepiece() {
    test::write_file(folder_ / "tokenizer.model", test::sentencepiece_model());
    return *this;
  }
  std::unique_ptr<Tokenizer> open() const { return tokenizer::make_tokenizer(name()); }
  std::string name() const { return folder_.path().string(); }

 private:
  test::TempDir folder_;
};

TEST(AddedTokens, OfAddedTokensJsonBesideAVocabulary) {
  Folder folder;
  folder.add_gpt2()
      .add("tokenizer_config.json", {{"tokenizer_class", "GPT2Tokenizer"}})
      .add("added_tokens.json", {{"<|im_start|>", kEnd + 2}, {"<pad>", kEnd + 1}});
  const auto plain = folder.open();
  EXPECT_EQ(plain->vocab_size(), kEnd + 3);
  EXPECT_EQ(plain->encode("a<pad>b"), (Ids{'a', kEnd + 1, 'b'}));
  EXPECT_EQ(plain->encode("<|im_start|>the"), (Ids{kEnd + 2, 257}));
  EXPECT_EQ(plain->decode(WideIds{'a', kEnd + 1, 'b'}), "a<pad>b");  // no special one
  EXPECT_EQ(plain->bos(), kEnd);
  EXPECT_EQ(plain->eos(), kEnd);
  // What the other files name is special.
  folder.add("special_tokens_map.json",
             {{"pad_token", "<pad>"}, {"additional_special_tokens", {special("<|im_start|>")}}});
  const auto named = folder.open();
  EXPECT_EQ(named->encode("a<pad>b"), (Ids{'a', kEnd + 1, 'b'}));
  EXPECT_EQ(named->decode(WideIds{'a', kEnd + 1, kEnd + 2, 'b'}), "ab");
  EXPECT_EQ(named->decode(WideIds{'a', kEnd + 1}, {.keep_special = true}), "a<pad>");
}

TEST(AddedTokens, OfAddedTokensDecoderBesideAVocabulary) {
  json padding = special("<pad>");
  padding["rstrip"] = true;
  Folder folder;
  folder.add_gpt2()
      .add("tokenizer_config.json",
           {{"tokenizer_class", "GPT2Tokenizer"},
            {"added_tokens_decoder", {{std::to_string(kEnd + 1), padding}}}})
      .add("added_tokens.json", {{"<other>", 1}});  // not read then
  const auto tokenizer = folder.open();
  EXPECT_EQ(tokenizer->vocab_size(), kEnd + 2);
  EXPECT_EQ(tokenizer->encode("a<pad>b"), (Ids{'a', kEnd + 1, 'b'}));
  EXPECT_EQ(tokenizer->encode("a<pad>  b"), (Ids{'a', kEnd + 1, 'b'}));
  EXPECT_EQ(tokenizer->decode(WideIds{'a', kEnd + 1, 'b'}), "ab");
}

TEST(AddedTokens, PrefixSpaceAndTemplateOfAVocabulary) {
  Folder folder;
  folder.add_gpt2().add("tokenizer_config.json",
                        {{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", true}});
  EXPECT_EQ(folder.open()->encode("hello the"), (Ids{' ', 262, 258}));
  EXPECT_EQ(folder.open()->encode("hello<|endoftext|>the"), (Ids{' ', 262, kEnd, 258}));
  json config = {{"tokenizer_class", "GPT2Tokenizer"},
                 {"add_bos_token", true},
                 {"bos_token", "<|endoftext|>"}};
  folder.add("tokenizer_config.json", config);
  EXPECT_EQ(folder.open()->encode("hello", {.add_template = true}), (Ids{kEnd, 262}));
  EXPECT_EQ(folder.open()->encode("hello"), (Ids{262}));
  config["add_eos_token"] = true;
  config["eos_token"] = "!";
  config["tokenizer_class"] = "JSONGPT2Tokenizer";
  folder.add("tokenizer_config.json", config);
  EXPECT_EQ(folder.open()->encode("hello", {.add_template = true}), (Ids{kEnd, 262, '!'}));
  config["bos_token"] = nullptr;
  folder.add("tokenizer_config.json", config);
  EXPECT_NE(error_of([&] { folder.open(); })
                .find("tokenizer_config.json: \"add_bos_token\" is true, but no token of the "
                      "vocabulary begins a text"),
            std::string::npos);
}

TEST(AddedTokens, NamedTokensOfAVocabularyAsInOpt) {
  Folder folder;
  folder.add_gpt2({"</s>", "<pad>"})
      .add("tokenizer_config.json",
           {{"tokenizer_class", "GPT2Tokenizer"},
            {"add_bos_token", true},
            {"bos_token", "</s>"},
            {"eos_token", special("</s>")},
            {"unk_token", "</s>"},
            {"pad_token", "<pad>"},
            {"mask_token", "<mask>"}});  // has no id
  const auto tokenizer = folder.open();
  EXPECT_EQ(tokenizer->vocab_size(), kEnd + 3);
  EXPECT_EQ(tokenizer->encode("x</s>y", {.add_template = true}),
            (Ids{kEnd + 1, 'x', kEnd + 1, 'y'}));
  EXPECT_EQ(tokenizer->encode("a<pad>b"), (Ids{'a', kEnd + 2, 'b'}));
  EXPECT_EQ(tokenizer->decode(WideIds{'a', kEnd + 1, kEnd + 2, 'b'}), "ab");
  EXPECT_EQ(tokenizer->encode("<|endoftext|>").size(), 13U);  // no special token of this folder
}

TEST(AddedTokens, OfAddedTokensJsonBesideASentencePieceModel) {
  Folder folder;
  folder.add_sentencepiece()
      .add("tokenizer_config.json", {{"add_bos_token", true}, {"eos_token", "<|im_end|>"}})
      .add("added_tokens.json",
           {{"<|im_start|>", kNumPieces}, {"<|im_end|>", kNumPieces + 1}, {"<s>", 1}});
  const auto tokenizer = folder.open();
  EXPECT_EQ(tokenizer->vocab_size(), kNumPieces + 2);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), kNumPieces + 1);
  EXPECT_EQ(tokenizer->encode("<|im_start|>the", {.add_template = true}),
            (Ids{1, kNumPieces, kThe}));
  EXPECT_EQ(tokenizer->encode("hello<|im_end|>"), (Ids{kHello, kNumPieces + 1}));
  EXPECT_EQ(tokenizer->encode("<s>the"), (Ids{1, kThe}));
  EXPECT_EQ(tokenizer->decode(WideIds{kHello, kNumPieces, kNumPieces + 1}), "hello<|im_start|>");
  folder.add("tokenizer_config.json", {{"bos_token", nullptr}});
  EXPECT_EQ(folder.open()->bos(), std::nullopt);
}

TEST(AddedTokens, OfAddedTokensDecoderBesideASentencePieceModel) {
  json config = {{"tokenizer_class", "LlamaTokenizer"},
                 {"added_tokens_decoder",
                  {{std::to_string(kNumPieces), special("<|im_start|>")},
                   {"0", special("<unk>")},
                   {"1", special("<s>")},
                   {"2", special("</s>")}}}};
  Folder folder;
  folder.add_sentencepiece().add("tokenizer_config.json", config);
  const auto tokenizer = folder.open();
  EXPECT_EQ(tokenizer->vocab_size(), kNumPieces + 1);
  EXPECT_EQ(tokenizer->encode("<|im_start|>the"), (Ids{kNumPieces, kThe}));
  EXPECT_EQ(tokenizer->encode("the</s>the<unk>"), (Ids{kThe, 2, kThe, 0}));
  EXPECT_EQ(tokenizer->decode(WideIds{kNumPieces, kThe, 0}), "the");
  EXPECT_EQ(tokenizer->decode(WideIds{kNumPieces, kThe}, {.keep_special = true}),
            "<|im_start|>the");
  EXPECT_EQ(tokenizer->safe_prefix("the the"), 3U);
  // Bytes that are no characters are what they are without added tokens.
  EXPECT_EQ(tokenizer->encode("\xff<s>\xe2\x82"),
            (Ids{268,
                 3 + 0xef,
                 3 + 0xbf,
                 3 + 0xbd,
                 1,
                 268,
                 3 + 0xef,
                 3 + 0xbf,
                 3 + 0xbd,
                 3 + 0xef,
                 3 + 0xbf,
                 3 + 0xbd}));
  // Only what begins the text is marked.
  config["legacy"] = false;
  folder.add("tokenizer_config.json", config);
  EXPECT_EQ(folder.open()->encode("<|im_start|>the"), (Ids{kNumPieces, kT, kHe}));
  EXPECT_EQ(folder.open()->encode("the<s>the <s> the"), (Ids{kThe, 1, kT, kHe, 268, 1, kThe}));
  config["add_prefix_space"] = false;
  folder.add("tokenizer_config.json", config);
  EXPECT_EQ(folder.open()->encode("the"), (Ids{kT, kHe}));
  EXPECT_EQ(folder.open()->decode(WideIds{kThe}), " the");
}

TEST(AddedTokens, OfAddedTokensDecoderBesideTokenizerJson) {
  Folder folder;
  json end = special("<|endoftext|>");
  end["lstrip"] = true;  // counts, not what tokenizer.json says
  json padding = special("<pad>");
  padding["special"] = false;  // it is, because it has a name
  folder.add("tokenizer.json", test::byte_level_json())
      .add("tokenizer_config.json",
           {{"pad_token", "<pad>"},
            {"added_tokens_decoder",
             {{std::to_string(kEnd), end}, {std::to_string(kEnd + 1), padding}}}});
  const auto tokenizer = folder.open();
  EXPECT_EQ(tokenizer->vocab_size(), kEnd + 2);
  EXPECT_EQ(tokenizer->encode("a<pad>b"), (Ids{'a', kEnd + 1, 'b'}));
  EXPECT_EQ(tokenizer->encode("a  <|endoftext|>b"), (Ids{'a', kEnd, 'b'}));
  EXPECT_EQ(tokenizer->decode(WideIds{'a', kEnd + 1, 'b'}), "ab");
}

TEST(AddedTokens, ListsThatContradictTheVocabularyAreErrors) {
  const auto expect = [](const json& list, bool is_decoder, const std::string& part) {
    for (const std::string kind : {"vocab.json", "tokenizer.json", "tokenizer.model"}) {
      Folder folder;
      if (kind == "vocab.json") folder.add_gpt2();
      if (kind == "tokenizer.json") folder.add(kind, test::byte_level_json());
      if (kind == "tokenizer.model") folder.add_sentencepiece();
      json config = {{"tokenizer_class", "GPT2Tokenizer"}};
      if (is_decoder) config["added_tokens_decoder"] = list;
      folder.add("tokenizer_config.json", config);
      if (!is_decoder) folder.add("added_tokens.json", list);
      const std::string said = error_of([&] { folder.open(); });
      EXPECT_NE(said.find(part), std::string::npos) << kind << ": " << said;
      const char* file =
          is_decoder ? "tokenizer_config.json: added_tokens_decoder" : "added_tokens.json";
      EXPECT_NE(said.find(file), std::string::npos) << kind << ": " << said;
    }
  };
  const auto decoder = [&](const std::string& id, const json& token, const std::string& part) {
    expect(json{{id, token}}, /*is_decoder=*/true, part);
  };
  const auto file = [&](const json& list, const std::string& part) {
    expect(list, /*is_decoder=*/false, part);
  };
  file({{"<pad>", 300}}, "\"<pad>\" has the id 300, but would get 2");
  file({{"<pad>", -1}}, "\"<pad>\" is -1; expected a whole number of 0 to");
  file({{"<pad>", 1e30}}, "\"<pad>\" is 1e+30; expected a whole number of 0 to");
  file({{"<pad>", "270"}}, "\"<pad>\" is \"270\"; expected a whole number of 0 to");
  file({{"h", 299}}, "\"h\" has the id 299, but would get ");
  file({{"<a>", 270}, {"<b>", 270}}, "\" has the id 270, but would get 2");
  decoder("300", special("<pad>"), "\"<pad>\" has the id 300, but would get 2");
  decoder("97", special("<pad>"), "\"<pad>\" has the id 97, but would get 2");
  decoder("-1", special("<pad>"), "the id of \"<pad>\" is \"-1\"; expected 0 to ");
  decoder("99999999999999999999", special("<pad>"), "\"; expected 0 to ");
  decoder("27x", special("<pad>"), "the id of \"<pad>\" is \"27x\"; expected 0 to ");
  decoder("270", "<pad>", "270: expected a JSON object");
  decoder("270", json::object(), "270: \"content\" is missing");
  const test::TempDir ranks;
  test::write_file(ranks / "x.tiktoken", test::tiktoken_ranks());
  const std::string name = "gpt2:" + ranks.path().string();
  test::write_file(
      ranks / "tokenizer_config.json",
      json{{"added_tokens_decoder", {{std::to_string(kEnd), special("<|endoftext|>")}}}}.dump());
  EXPECT_EQ(tokenizer::make_tokenizer(name)->vocab_size(), kEnd + 1);
  test::write_file(
      ranks / "tokenizer_config.json",
      json{{"added_tokens_decoder", {{std::to_string(kEnd + 1), special("<pad>")}}}}.dump());
  EXPECT_NE(error_of([&] { tokenizer::make_tokenizer(name); })
                .find("added_tokens_decoder: \"<pad>\" with the id 270 beside a rank file is not "
                      "supported"),
            std::string::npos);
}

TEST(AddedTokens, AreInCopiesOfTheTokenizer) {
  Folder folder;
  folder.add_gpt2({"<x>"})
      .add("added_tokens.json", {{"<pad>", kEnd + 2}})
      .add("special_tokens_map.json", {{"pad_token", "<pad>"}, {"unk_token", "<x>"}});
  const test::TempDir copy;
  for (const auto& file : tokenizer::saved_files(folder.name())) {
    test::write_file(copy / file.name, file.contents);
  }
  const auto copied = tokenizer::make_tokenizer(copy.path().string());
  EXPECT_EQ(copied->encode("a<pad>b<x>"), (Ids{'a', kEnd + 2, 'b', kEnd + 1}));
  EXPECT_EQ(copied->decode(WideIds{'a', kEnd + 2, kEnd + 1}), "a");
  EXPECT_EQ(tokenizer::fingerprint(tokenizer::saved_files(copy.path().string())),
            tokenizer::fingerprint(tokenizer::saved_files(folder.name())));
}

// A map beside tokenizer.json too, unless the config lists the added tokens.
TEST(AddedTokens, EndsAreThoseOfTheMap) {
  json contents = test::byte_level_json();
  const json vocabulary = contents["model"]["vocab"];
  Folder folder;
  folder.add("tokenizer.json", contents)
      .add("tokenizer_config.json", {{"eos_token", "<|endoftext|>"}})
      .add("special_tokens_map.json", {{"bos_token", "t"}, {"eos_token", special("he")}});
  const test::TempDir copy;
  for (const auto& file : tokenizer::saved_files(folder.name())) {
    test::write_file(copy / file.name, file.contents);
  }
  for (const std::string& name : {folder.name(), copy.path().string()}) {
    const auto tokenizer = tokenizer::make_tokenizer(name);
    EXPECT_EQ(tokenizer->bos(), vocabulary["t"].get<int64_t>()) << name;
    EXPECT_EQ(tokenizer->eos(), vocabulary["he"].get<int64_t>()) << name;
  }
  folder.add("tokenizer_config.json",
             {{"eos_token", "<|endoftext|>"}, {"added_tokens_decoder", json::object()}});
  EXPECT_EQ(folder.open()->eos(), kEnd);
}

// A copy of "json:" names the class that escapes, and keeps add_bos_token.
TEST(AddedTokens, CopiesThatEscapeBeginTextsOnce) {
  const auto expect_once = [](Folder& folder, int32_t bos) {
    folder.add("tokenizer_config.json", {{"add_bos_token", true}});
    const test::TempDir copy;
    for (const auto& file : tokenizer::saved_files("json:" + folder.name())) {
      test::write_file(copy / file.name, file.contents);
    }
    for (const std::string& name : {"json:" + folder.name(), copy.path().string()}) {
      const Ids ids = tokenizer::make_tokenizer(name)->encode("the", {.add_template = true});
      EXPECT_EQ(ids.front(), bos) << name;
      EXPECT_EQ(std::ranges::count(ids, bos), 1) << name;
    }
  };
  Folder pieces, contents;
  expect_once(pieces.add_sentencepiece(), 1);
  json with_template = test::byte_level_json();
  with_template["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens",
       {{"<|endoftext|>",
         {{"id", "<|endoftext|>"}, {"ids", {kEnd}}, {"tokens", {"<|endoftext|>"}}}}}}};
  expect_once(contents.add("tokenizer.json", with_template), kEnd);
}

TEST(AddedTokens, AWordIsFoundWhereNoOtherTouchesIt) {
  tokenizer::TokenFinder finder;
  finder.add("tag", {.content = "tag", .id = 5, .single_word = true});
  finder.add("tag", {.content = "tag", .id = 6});  // the first of equals counts
  const auto count = [&](std::string_view text) {
    int64_t found = 0;
    finder.split(text, [&](std::string_view /*part*/, int32_t id) {
      EXPECT_TRUE(id == 5 || id == -1) << id;
      found += id == 5 ? 1 : 0;
    });
    return found;
  };
  EXPECT_EQ(count("tag a tag. (tag)"), 3);
  EXPECT_EQ(count("atag"), 0);
  EXPECT_EQ(count("taga"), 0);
  EXPECT_EQ(count("étag tagé"), 0);
}

// A cut between a word and a space would leave the space to the next part.
TEST(AddedTokens, TextIsCutWhereTokensTakeNoSpaces) {
  const auto keeps_word_ends = [](const std::string& text, tokenizer::AddedToken token) {
    tokenizer::TokenFinder finder;
    finder.add(text, token);
    return finder.keeps_word_ends();
  };
  EXPECT_TRUE(keeps_word_ends("tag", {}));
  EXPECT_FALSE(keeps_word_ends("tag", {.rstrip = true}));
  EXPECT_TRUE(keeps_word_ends("<tag>", {.rstrip = true}));
  EXPECT_FALSE(keeps_word_ends("a tag", {}));
}

std::string repeated(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// Long texts are encoded in chunks: none may end within a token, however its spaces are written.
TEST(AddedTokens, WithSpacesAreFoundInLongTexts) {
  constexpr int kTimes = 10000;
  json contents = test::metaspace_json();
  json token = special("hello the");
  token["id"] = contents["model"]["vocab"].size();
  token["special"] = false;
  token["normalized"] = true;
  contents["added_tokens"].push_back(token);
  Folder folder;
  const auto tokenizer = folder.add("tokenizer.json", contents).open();
  const Ids once = tokenizer->encode(" hello the.", {.continues = true});
  EXPECT_EQ(std::ranges::count(once, token["id"].get<int32_t>()), 1);
  Ids expected;
  for (int i = 0; i < kTimes; ++i) expected.insert(expected.end(), once.begin(), once.end());
  EXPECT_TRUE(tokenizer->encode(repeated(" hello the.", kTimes), {.continues = true}) == expected);
}

// Nor may a chunk end behind a newline where the normalizer takes it, or puts a space before it.
TEST(AddedTokens, NewlinesThatANormalizerMovesEndNoChunk) {
  constexpr int kTimes = 20000;
  json contents = test::byte_level_json();
  contents["model"]["vocab"]["ĠĊ"] = kEnd;  // a space and a newline
  contents["model"]["merges"].push_back({"Ġ", "Ċ"});
  contents["added_tokens"][0]["id"] = kEnd + 1;
  Folder without;
  const auto plain = without.add("tokenizer.json", contents).open();
  for (const auto& [from, to] : {std::pair("\n", ""), std::pair(",", " ")}) {
    contents["normalizer"] = {
        {"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
    Folder folder;
    const auto tokenizer = folder.add("tokenizer.json", contents).open();
    for (const std::string text : {"h\ne", "h,\ne"}) {
      std::string replaced = text;
      const std::size_t at = text.find(from);
      if (at != std::string::npos) replaced.replace(at, 1, to);
      EXPECT_TRUE(tokenizer->encode(repeated(text, kTimes)) ==
                  plain->encode(repeated(replaced, kTimes)))
          << json(text) << " with " << json(to) << " for " << json(from);
    }
  }
}

// Tokens of white space that tokens before them took already.
TEST(AddedTokens, SpacesAreTakenOnce) {
  const auto encode = [](const json& newlines, std::string_view text) {
    json contents = test::byte_level_json();
    json tag = special("<t>");
    tag["id"] = kEnd + 1;
    tag["rstrip"] = true;
    json lines = special("\n\n");
    lines["id"] = kEnd + 2;
    lines.update(newlines);
    contents["added_tokens"].push_back(tag);
    contents["added_tokens"].push_back(lines);
    Folder folder;
    return folder.add("tokenizer.json", contents).open()->encode(text);
  };
  EXPECT_EQ(encode({{"lstrip", true}}, "<t>\n\nx"), (Ids{kEnd + 1, 'x'}));
  EXPECT_EQ(encode({{"lstrip", false}}, "<t>\n\nx"), (Ids{kEnd + 1, kEnd + 2, 'x'}));
  EXPECT_EQ(encode({{"lstrip", true}, {"rstrip", true}}, "a\n\n\n\n\nb"),
            (Ids{'a', kEnd + 2, 'b'}));
}

}  // namespace
