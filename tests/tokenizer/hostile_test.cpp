// Damaged and malicious tokenizer files: every one is an error that names it, or a tokenizer that
// can be used.

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/saved_tokenizer.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/mutate.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace reynard;
using nlohmann::json;

// Opens the file and uses whatever it is. Returns whether it was a tokenizer.
bool try_file(const std::string& name) {
  static const std::vector<std::string> texts = test::difficult_texts();
  try {
    const auto tokenizer = tokenizer::make_tokenizer(name);
    EXPECT_GT(tokenizer->vocab_size(), 0);
    for (const std::string& text : texts) {
      const auto ids = tokenizer->encode(text, {.add_template = true});
      for (const int32_t id : ids) EXPECT_TRUE(id >= 0 && id < tokenizer->vocab_size()) << id;
      tokenizer->decode(std::vector<int64_t>(ids.begin(), ids.end()), {.keep_special = true});
      tokenizer->safe_prefix(text);
    }
    tokenizer->encode("\xff\xe2\x82");
    tokenizer::fingerprint(tokenizer::saved_files(name));
    return true;
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()), "");
    return false;
  }
}

struct Format {
  std::string file;
  std::string prefix;
  std::string contents;
  std::vector<std::string> words;
};

// Small enough that a change often hits something that counts.
json small(json contents) {
  json& vocab = contents["model"]["vocab"];
  if (contents["decoder"]["type"] == "ByteLevel") return contents;
  for (int byte = 0; byte < 256; ++byte) {
    static constexpr char kDigits[] = "0123456789ABCDEF";
    vocab.erase(std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + ">");
  }
  int64_t id = 0;
  for (auto& value : vocab) value = id++;
  contents["added_tokens"][0]["id"] = vocab["<s>"];
  contents["post_processor"]["special_tokens"]["<s>"]["ids"] = {vocab["<s>"]};
  return contents;
}

std::vector<Format> formats() {
  const std::vector<std::string> words = {
      R"({"type":"NFKC"})",
      R"({"type":"Sequence","normalizers":[]})",
      R"x({"type":"Split","pattern":{"Regex":"(a*)*b|\\p{L}+(?!x)"},"behavior":"Removed"})x",
      R"({"type":"Replace","pattern":{"String":""},"content":"xx"})",
      R"({"type":"Metaspace","replacement":"_"})",
      R"({"type":"Digits","individual_digits":true})",
      R"({"type":"Strip","content":"a","start":1000000,"stop":9})",
      "\"BPE\"",
      "\"ids\":[0,-1,99999999999]",
      "\"single_word\":true",
      "\"lstrip\":true",
      "\"normalized\":true",
      "\\ud800",
      "null",
      "[[[[",
      "\"ignore_merges\":true"};
  test::SentencePieceOptions plain;
  plain.byte_fallback = false;
  test::SentencePieceOptions mapped = plain;
  mapped.character_map = std::string("\x08\0\0\0abcdefgh\0x\0", 15);
  mapped.user_defined = {"<m>"};
  return {
      {"tokenizer.json", "", small(test::byte_level_json()).dump(), words},
      {"tokenizer.json", "json:", small(test::metaspace_json()).dump(), words},
      {"x.tiktoken", "gpt2:", test::tiktoken_ranks(), {"AA== 0\n", "==", " ", "\n", "-1"}},
      {"x.model", "", test::sentencepiece_model(plain), {"\x0a\xff\xff\xff\xff\x0f", "\x18\x06"}},
      {"x.model", "", test::sentencepiece_model(mapped), {std::string(8, '\xff')}}};
}

TEST(Hostile, MutatedFilesAreErrorsOrTokenizers) {
  const test::TempDir folder;
  int num_good = 0;
  int num_bad = 0;
  for (const Format& format : formats()) {
    const std::string name = format.prefix + (folder / format.file).string();
    test::write_file(folder / format.file, format.contents);
    const bool is_map = format.words.size() == 1;  // its rules are no trie
    EXPECT_TRUE(is_map || try_file(name)) << format.file;
    test::repeat_for(2, 1500, [&](uint64_t attempt) {
      test::Mutator mutator(attempt);
      test::write_file(folder / format.file, mutator.mutate(format.contents, format.words));
      ++(try_file(name) ? num_good : num_bad);
    });
  }
  // How many there are depends on the machine; neither kind may be rare.
  const int num_tried = num_good + num_bad;
  EXPECT_GT(100 * num_good, num_tried);
  EXPECT_GT(100 * num_bad, num_tried);
}

TEST(Hostile, MutatedConfigsAndGpt2Files) {
  const test::TempDir folder;
  const json parts = test::byte_level_json();
  std::string merges;
  for (const json& pair : parts["model"]["merges"]) {
    merges += pair[0].get<std::string>() + " " + pair[1].get<std::string>() + "\n";
  }
  const std::string token = R"({"content": "<x>", "lstrip": true, "special": true})";
  const std::string config =
      R"({"tokenizer_class": "GPT2Tokenizer", "bos_token": {"content": "!"}, "eos_token": "!",)"
      R"( "add_bos_token": false, "add_prefix_space": true, "legacy": false,)"
      R"( "split_pattern": "gpt2")";
  const auto try_all = [&](const std::vector<std::pair<std::string, std::string>>& files) {
    for (const auto& [name, contents] : files) test::write_file(folder / name, contents);
    EXPECT_TRUE(try_file(folder.path().string()));
    for (const auto& [name, contents] : files) {
      test::repeat_for(1, 700, [&](uint64_t attempt) {
        test::Mutator mutator(attempt);
        test::write_file(
            folder / name,
            mutator.mutate(contents, {"\"ByteTokenizer\"", "{}", "[]", "-1", "4194304"}));
        try_file(folder.path().string());
      });
      test::write_file(folder / name, contents);
    }
  };
  try_all({{"vocab.json", parts["model"]["vocab"].dump()},
           {"merges.txt", "#version: 0.2\n" + merges},
           {"tokenizer_config.json", config + "}"},
           {"added_tokens.json", R"({"<x>": 269, "<pad>": 270})"},
           {"special_tokens_map.json", R"({"pad_token": "<pad>", "sep_token": )" + token + "}"}});
  // The model comes before the vocabulary.
  try_all(
      {{"tokenizer.model", test::sentencepiece_model()},
       {"tokenizer_config.json", config + R"(, "added_tokens_decoder": {"275": )" + token + "}}"}});
}

TEST(Hostile, SizesThatAFileClaimsAreNotAllocated) {
  const test::TempDir folder;
  const auto expect_error = [&](const std::string& file, const std::string& contents) {
    test::write_file(folder / file, contents);
    EXPECT_FALSE(try_file((file == "x.tiktoken" ? "gpt2:" : "") + (folder / file).string()))
        << file;
  };
  json contents = test::byte_level_json();
  contents["model"]["vocab"]["huge"] = int64_t{1} << 40;
  expect_error("tokenizer.json", contents.dump());
  expect_error("x.tiktoken", test::tiktoken_ranks() + "enp6 2147483647\n");
  expect_error("x.model", std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10));
  expect_error("x.model", "\x0a");
  expect_error("x.model", "");
}

}  // namespace
