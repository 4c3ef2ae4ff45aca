#include "reynard/generation/chat_template.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::generation {
namespace {

const std::vector<ChatMessage> kTalk = {
    {"system", "Be brief."}, {"user", " one "}, {"assistant", "two\n"}, {"user", "three"}};

TEST(ChatTemplate, FamiliesByName) {
  EXPECT_EQ(ChatTemplate::named("chatml").render(kTalk),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n one <|im_end|>\n"
            "<|im_start|>assistant\ntwo\n<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(ChatTemplate::named("llama3", {"<|begin_of_text|>", ""}).render(kTalk),
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\none<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\ntwo<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nthree<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(ChatTemplate::named("llama2", {"<s>", "</s>"}).render(kTalk),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n one [/INST] two </s>"
            "<s>[INST] three [/INST]");
  EXPECT_EQ(ChatTemplate::named("longllama", {"<s>", "</s>"}).render(kTalk),
            "<s>Be brief.\n\n\nUSER:  one \nASSISTANT: two\n</s>\nUSER: three\nASSISTANT: ");
  EXPECT_EQ(ChatTemplate::named("longllama", {"<s>", "</s>"}).turn_end(), "</s>");
  EXPECT_EQ(ChatTemplate::named("chatml").turn_end(), "<|im_end|>");
  EXPECT_EQ(ChatTemplate::named("llama3").turn_end(), "<|eot_id|>");
  EXPECT_EQ(ChatTemplate::named("llama2", {"<s>", "</s>"}).turn_end(), "</s>");
  EXPECT_THROW(ChatTemplate::named("nonsense"), Error);
}

TEST(ChatTemplate, RefusesWhatItCannotExpress) {
  const ChatTemplate llama2 = ChatTemplate::named("llama2");
  EXPECT_THROW(llama2.render({}), Error);
  EXPECT_THROW(llama2.render(std::vector<ChatMessage>{{"cat", "meow"}}), Error);
  EXPECT_THROW(llama2.render(std::vector<ChatMessage>{{"user", "a"}, {"user", "b"}}), Error);
}

TEST(ChatTemplate, UnsupportedTemplatesAreNamed) {
  try {
    ChatTemplate::published("{{ messages }}\n{% include 'x' %}", "model/chat_template.jinja");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "model/chat_template.jinja: the chat template: line 2: \"include\" is no "
                 "supported tag; name another with --chat-template");
  }
}

TEST(ChatTemplate, WhatEndsAnAnswerIsATokenOrAText) {
  const ChatTemplate chat = ChatTemplate::named("chatml");
  const tokenizer::ByteTokenizer bytes;
  const ChatPrompt prompt = chat_prompt(chat, bytes, kTalk);
  EXPECT_EQ(prompt.tokens.size(), chat.render(kTalk).size());
  EXPECT_TRUE(prompt.stop.empty());
  EXPECT_EQ(prompt.stop_texts, std::vector<std::string>{"<|im_end|>"});
  // A tokenizer with a token for it.
  const test::TempDir folder;
  nlohmann::json json = test::byte_level_json();
  const int64_t id = json["model"]["vocab"].size() + json["added_tokens"].size();
  nlohmann::json end = json["added_tokens"][0];
  end["id"] = id, end["content"] = "<|im_end|>", end["special"] = true;
  json["added_tokens"].push_back(end);
  test::write_file(folder / "tokenizer.json", json.dump());
  const auto tokenizer = tokenizer::make_tokenizer((folder / "tokenizer.json").string());
  const std::vector<int64_t> expected = {tokenizer->encode("<|im_end|>").at(0)};
  EXPECT_EQ(chat_prompt(chat, *tokenizer, kTalk).stop, expected);
  EXPECT_TRUE(chat_prompt(chat, *tokenizer, kTalk).stop_texts.empty());
}

std::vector<int64_t> wide(const std::vector<int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

// SentencePiece finds its control pieces in no text.
TEST(ChatTemplate, NamesOfControlPiecesBecomeTheirTokens) {
  const auto tokenizer = test::sentencepiece_tokenizer();
  const ChatTemplate chat = ChatTemplate::named("longllama", {"<s>", "</s>"});
  const std::vector<ChatMessage> talk = {{"user", "the"}, {"assistant", "hello"}, {"user", "hell"}};
  std::vector<int64_t> expected = {tokenizer->bos().value()};
  const auto add = [&](const std::vector<int64_t>& ids) {
    expected.insert(expected.end(), ids.begin(), ids.end());
  };
  add(wide(tokenizer->encode("\nUSER: the\nASSISTANT: hello")));
  add({tokenizer->eos().value()});
  add(wide(tokenizer->encode("\nUSER: hell\nASSISTANT: ")));
  const ChatPrompt prompt = chat_prompt(chat, *tokenizer, talk);
  EXPECT_EQ(prompt.tokens, expected);
  EXPECT_EQ(prompt.stop, std::vector<int64_t>{tokenizer->eos().value()});
  EXPECT_TRUE(prompt.stop_texts.empty());
  // Names that are another token's, or none's, stay text.
  const ChatTemplate other = ChatTemplate::named("longllama", {"<unk>", "<end>"});
  EXPECT_EQ(chat_prompt(other, *tokenizer, talk).tokens,
            wide(tokenizer->encode(other.render(talk))));
}

// "legacy": false: only what begins the prompt is marked. Added tokens are one id each.
TEST(ChatTemplate, TextBehindSpecialTokensAsTheFolderSays) {
  const test::TempDir folder;
  test::write_file(folder / "tokenizer.model", test::sentencepiece_model());
  const auto tokens = [&](nlohmann::json config, const std::string& source) {
    test::write_file(folder / "tokenizer_config.json", config.dump());
    const auto tokenizer = tokenizer::make_tokenizer(folder.path().string());
    const auto chat = ChatTemplate::published(source, "test", {"<s>", "</s>"});
    const std::vector<ChatMessage> talk = {{"user", "the"}};
    return chat_prompt(chat, *tokenizer, talk).tokens;
  };
  const std::string source = "{{ bos_token }}{{ messages[0].content }}";
  EXPECT_EQ(tokens({{"legacy", true}}, source), (std::vector<int64_t>{1, 261}));        // "▁the"
  EXPECT_EQ(tokens({{"legacy", false}}, source), (std::vector<int64_t>{1, 269, 260}));  // t he
  EXPECT_EQ(tokens({{"legacy", false}}, "{{ messages[0].content }}"), (std::vector<int64_t>{261}));
  const nlohmann::json added = {
      {"added_tokens_decoder", {{"275", {{"content", "<|im_start|>"}, {"special", true}}}}}};
  EXPECT_EQ(tokens(added, "{{ bos_token }}<|im_start|>{{ messages[0].content }}"),
            (std::vector<int64_t>{1, 275, 261}));
}

// The ids of Transformers' LlamaTokenizer (legacy) for the same text, but for the blank at its end:
// SentencePiece drops that.
TEST(ChatTemplate, ControlPiecesAsInTransformers) {
  const std::string file = REYNARD_SOURCE_DIR "/../shared/data/tokenizers/open_llama.model";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << file << " is not there";
  const auto tokenizer = tokenizer::make_tokenizer(file);
  const ChatTemplate chat = ChatTemplate::named("longllama", {"<s>", "</s>"});
  const std::vector<ChatMessage> talk = {{"user", "hi"}, {"assistant", "yo"}, {"user", "hi"}};
  const ChatPrompt prompt = chat_prompt(chat, *tokenizer, talk);
  EXPECT_EQ(prompt.tokens,
            (std::vector<int64_t>{1,    31822, 13,    3031, 1193,  31871, 23980, 13,   8769,
                                  9050, 11102, 31871, 343,  31826, 2,     31822, 13,   3031,
                                  1193, 31871, 23980, 13,   8769,  9050,  11102, 31871}));
}

// The templates as published; the same against the library that defines them: tests/cli.
TEST(ChatTemplate, PublishedOnes) {
  const auto published = [](const std::string& name) {
    const std::string file =
        std::string(REYNARD_SOURCE_DIR "/tests/generation/chat_templates/") + name;
    return ChatTemplate::published(test::read_file(file), file, {"<s>", "</s>"});
  };
  const std::vector<ChatMessage> question = {{"user", "hi"}};
  EXPECT_EQ(published("qwen2.5.jinja").render(question),
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
            "assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  const std::vector<ChatMessage> thought = {
      {"user", "a"}, {"assistant", "<think>\nhm\n</think>\n\nb"}, {"user", "c"}};
  EXPECT_EQ(published("qwen3.jinja").render(thought),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
            "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(published("phi-3.5.jinja").turn_end(), "<|end|>\n</s>");
  EXPECT_EQ(published("qwen3.jinja").turn_end(), "<|im_end|>");
  // As many messages as a server takes: the template asks for their number at each.
  std::vector<ChatMessage> long_talk;
  for (int i = 0; i < 4096; ++i) long_talk.push_back({i % 2 == 0 ? "user" : "assistant", "hi"});
  EXPECT_EQ(published("qwen3.jinja").render(long_talk).substr(0, 19), "<|im_start|>user\nhi");
}

}  // namespace
}  // namespace reynard::generation
