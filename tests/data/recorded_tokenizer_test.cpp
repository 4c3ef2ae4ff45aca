// Token files and the tokenizer that they were made with.

#include "reynard/data/recorded_tokenizer.h"
#include "reynard/data/prepare.h"
#include "reynard/data/token_file.h"
#include "tests/support/errors.h"
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace {

using namespace reynard;
namespace fs = std::filesystem;
using data::TokenFile;
using test::error_of;

class RecordedTokenizer : public testing::Test {
 protected:
  RecordedTokenizer() {
    test::write_file(folder_ / "gpt2.json", test::byte_level_json().dump());
    test::write_file(folder_ / "llama.model", test::sentencepiece_model());
  }
  data::PrepareOptions options(const std::string& tokenizer, const std::string& text) {
    test::write_file(folder_ / "in.txt", text);
    data::PrepareOptions options;
    options.inputs = {folder_ / "in.txt"};
    options.output = folder_ / "out";
    options.tokenizer = tokenizer;
    return options;
  }
  test::TempDir folder_;
};

TEST_F(RecordedTokenizer, StaysWithItsTokenFile) {
  // More than the reader's blocks, so that the text is encoded in pieces.
  std::string text;
  while (text.size() < 3'000'000) text += "the  hello'  \xc3\xa9 ";
  for (const std::string& name :
       {(folder_ / "gpt2.json").string(), (folder_ / "llama.model").string()}) {
    data::prepare(options(name, text));
    fs::rename(folder_ / "out", folder_ / "moved");
    const TokenFile file(folder_ / "moved/train.tokens");
    const auto original = tokenizer::make_tokenizer(name);
    const auto recorded = data::recorded_tokenizer(file);
    EXPECT_EQ(recorded->name(), original->name());
    const std::vector<int64_t> ids = file.read(0, file.num_tokens());
    EXPECT_EQ(ids.front(), original->bos().value_or(*original->eos()));
    EXPECT_EQ(ids.back(), original->eos());
    const std::vector<int32_t> expected = original->encode(text);
    ASSERT_EQ(ids.size(), expected.size() + 2);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), ids.begin() + 1));
    EXPECT_EQ(recorded->decode(ids), text);
    EXPECT_FALSE(data::recorded_tokenizer_files(file).empty());
    fs::remove_all(folder_ / "moved");
  }
}

TEST_F(RecordedTokenizer, AMissingOrChangedCopyIsAnError) {
  data::prepare(options((folder_ / "gpt2.json").string(), "the text"));
  const TokenFile file(folder_ / "out/train.tokens");
  const fs::path copy = folder_ / "out" / file.header().tokenizer;
  ASSERT_TRUE(fs::exists(copy / "tokenizer.json"));
  test::write_file(copy / "tokenizer.json", test::metaspace_json().dump());
  EXPECT_NE(error_of([&] { data::recorded_tokenizer(file); }).find("was changed after"),
            std::string::npos);
  fs::remove_all(copy);
  EXPECT_NE(error_of([&] { data::recorded_tokenizer(file); }).find("is missing: the tokenizer of"),
            std::string::npos);
}

TEST_F(RecordedTokenizer, PreparingAgainMendsAChangedCopy) {
  const auto again = options((folder_ / "gpt2.json").string(), "the text");
  data::prepare(again);
  const fs::path copy =
      folder_ / "out" / TokenFile(folder_ / "out/train.tokens").header().tokenizer;
  const std::string good = test::read_file(copy / "tokenizer.json");
  for (const std::string& bad : {good + " ", std::string("{")}) {
    test::write_file(copy / "tokenizer.json", bad);
    data::prepare(again);
    EXPECT_EQ(test::read_file(copy / "tokenizer.json"), good);
    EXPECT_EQ(data::recorded_tokenizer(TokenFile(folder_ / "out/train.tokens"))->eos(), 269);
  }
  // A good one stays, with what lies there too.
  test::write_file(copy / "notes", "mine");
  data::prepare(again);
  EXPECT_EQ(test::read_file(copy / "notes"), "mine");
}

TEST_F(RecordedTokenizer, ByteNeedsNoCopy) {
  data::prepare(options("byte", "text"));
  const TokenFile file(folder_ / "out/train.tokens");
  EXPECT_EQ(data::recorded_tokenizer(file)->name(), "byte");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "out"), {}), 1);
}

TEST_F(RecordedTokenizer, NothingIsLeftOfWhatFailed) {
  EXPECT_NE(
      error_of([&] { data::prepare(options((folder_ / "gpt2.json").string(), "not \xff text")); }),
      "no error");
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_F(RecordedTokenizer, WhatAKilledRunLeftGoesWithTheNext) {
  for (const std::string& name : {std::string("byte"), (folder_ / "gpt2.json").string()}) {
    for (const char* left : {".tmp-tokenizer-0123456789abcdef-7.0", ".tmp-tokenizer-0-new-7"}) {
      fs::create_directories(folder_ / "out" / left);
      test::write_file(folder_ / "out" / left / "tokenizer.json", "half of");
    }
    test::write_file(folder_ / "out/.tmp-other-7.0", "not of prepare");
    data::prepare(options(name, "text"));
    for (const auto& entry : fs::directory_iterator(folder_ / "out")) {
      EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-tokenizer")) << entry.path();
    }
    EXPECT_TRUE(fs::exists(folder_ / "out/.tmp-other-7.0"));
  }
}

TEST_F(RecordedTokenizer, CopiesThatNoTokenFileNamesAreRemoved) {
  const auto record_in_out = [&](const std::string& tokenizer) {
    data::prepare(options(tokenizer, "text"));
    return folder_ / "out" / TokenFile(folder_ / "out/train.tokens").header().tokenizer;
  };
  const fs::path first = record_in_out((folder_ / "gpt2.json").string());
  const fs::path second = record_in_out((folder_ / "llama.model").string());
  EXPECT_FALSE(fs::exists(first));
  EXPECT_TRUE(fs::exists(second));
  // Another token file has it, whatever it is called; a folder of its kind may hold other things.
  fs::copy(folder_ / "out/train.tokens", folder_ / "out/kept");
  const fs::path own = folder_ / "out/tokenizer-0123456789abcdef";
  fs::create_directory(own);
  record_in_out("byte");
  EXPECT_TRUE(fs::exists(second));
  fs::remove(folder_ / "out/kept");
  test::write_file(second / "notes", "mine");
  record_in_out("byte");
  EXPECT_TRUE(fs::exists(second));
  fs::remove(second / "notes");
  // A damaged token file may name it.
  test::write_file(folder_ / "out/old.tokens", "damaged");
  record_in_out("byte");
  EXPECT_TRUE(fs::exists(second));
  fs::remove(folder_ / "out/old.tokens");
  record_in_out("byte");
  EXPECT_FALSE(fs::exists(second));
  EXPECT_TRUE(fs::exists(own));
}

TEST_F(RecordedTokenizer, TextsNeedATokenAtTheirEnds) {
  auto json = test::byte_level_json();
  json.erase("added_tokens");
  test::write_file(folder_ / "none.json", json.dump());
  EXPECT_NE(error_of([&] {
              data::prepare(options((folder_ / "none.json").string(), "text"));
            }).find("has no token that begins or ends a text"),
            std::string::npos);
}

}  // namespace
