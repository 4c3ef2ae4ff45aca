#include "reynard/generation/chat_template.h"

#include "reynard/generation/jinja/template.h"
#include "reynard/tensor/error.h"
#include "reynard/tokenizer/tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/mutate.h"
#include "tests/support/tokenizers.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::generation {
namespace {

using jinja::Template;
using jinja::Value;

const std::vector<ChatMessage> kTalk = {
    {"system", "Be brief."}, {"user", " one "}, {"assistant", "two\n"}, {"user", "three"}};

std::string render(const std::string& source, const Value::Map& variables = {}) {
  return Template(source).render(variables);
}

void expect_error(const std::string& source, const std::string& part) {
  try {
    ADD_FAILURE() << source << " gives " << render(source);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

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
}

TEST(Jinja, ValuesAndOperators) {
  EXPECT_EQ(render("{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1.5 * 2 }}"),
            "7 3 2 3.5 3.0");
  EXPECT_EQ(render("{{ 'a' ~ 1 ~ 1 }}{{ 'b' + \"c\\n\" }}"), "a11bc\n");
  EXPECT_EQ(render("{{ not 1 == 2 and 'b' in 'abc' }} {{ 3 not in [1, 2] }}"), "True True");
  EXPECT_EQ(render("{{ none }} {{ missing }}| {{ true if 0 else 'no' }}"), "None | no");
  EXPECT_EQ(render("{{ [1, 2, 3][-1] }} {{ [1, 2, 3][1:] | join(',') }} {{ 'üab'[::-1] }}"),
            "3 2,3 baü");
  EXPECT_EQ(render("{{ {'a': {'b': 5}}.a['b'] }} {{ 'x' is string }} {{ x is defined }}"),
            "5 True False");
  EXPECT_EQ(render("{{ 'a</t>b'.split('</t>')[-1].lstrip() | upper | trim }}"), "B");
  EXPECT_EQ(render("{{ {'k': [1, 'ü\"'], 'n': none} | tojson }}"),
            "{\"k\": [1, \"ü\\\"\"], \"n\": null}");
}

TEST(Jinja, WhiteSpaceGoesAsInTransformers) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(render("a  {%- if true -%}  b  {%- endif -%}  c"), "abc");
  EXPECT_EQ(render("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
  EXPECT_EQ(render("{# note #}\nx{#- y -#} z"), "xz");
  EXPECT_EQ(render("  {{ 'kept' }}\n"), "  kept");
  EXPECT_EQ(render("a\r\nb"), "a\nb");
}

TEST(Jinja, StatementsAndScopes) {
  EXPECT_EQ(render("{% for a, b in [(1, 2), (3, 4)] %}{{ loop.index }}{{ a }}{{ b }};"
                   "{% else %}none{% endfor %}"),
            "112;234;");
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [5] %}{% set x = i %}{% endfor %}{{ x }}"), "1");
  EXPECT_EQ(render("{% set n = namespace(x=1) %}{% for i in [5] %}{% set n.x = i %}{% endfor %}"
                   "{{ n.x }}"),
            "5");
  EXPECT_EQ(render("{% for i in range(9) if i is odd %}{% if i == 5 %}{% break %}{% endif %}"
                   "{{ i }}{% if loop.last %}!{% endif %}{% endfor %}"),
            "13");
  EXPECT_EQ(
      render("{% macro m(a, b='x') %}<{{ a }}{{ b }}>{% endmacro %}{{ m(1) }}{{ m(2, b=3) }}"),
      "<1x><23>");
  EXPECT_EQ(render("{% set t %}in{{ 1 }}{% endset %}[{{ t }}]"), "[in1]");
}

TEST(Jinja, ErrorsSayWhereAndWhat) {
  expect_error("a\n{{ x | nonsense }}", "line 2: \"nonsense\" is no supported filter");
  expect_error("{{ x.y.z }}", "line 1: \"y\" of what is undefined");
  expect_error("{% if x %}", "\"endif\" is missing");
  expect_error("{{ 1 / 0 }}", "division by 0");
  expect_error("{{ raise_exception('no ' ~ 1) }}", "line 1: no 1");
  expect_error("{{ 'abc", "line 1: the string has no end");
  expect_error("{{ 9223372036854775807 + 1 }}", "too large");
  expect_error("{{ [] }}", "a list cannot be written as text");
}

// Templates are files of others.
TEST(Jinja, HostileTemplatesEnd) {
  expect_error("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
               "takes too long");
  expect_error(
      "{% set n = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}"
      "{% set n.s = n.s + n.s %}{% endfor %}",
      "too long");
  expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too often");
  expect_error("{% set n = namespace() %}{% set n.l = [n] %}", "namespace");
  expect_error(
      "{% set n = namespace(l=[]) %}{% for i in range(999) %}{% set n.l = [n.l] %}"
      "{% endfor %}",
      "too deep");
  expect_error("{{ " + std::string(90'000, '(') + "1" + std::string(90'000, ')') + " }}", "levels");
  std::string chain = "{{ 1";
  for (int i = 0; i < 5000; ++i) chain += " + 1";
  expect_error(chain + " }}", "levels");
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if true %}";
  expect_error(blocks, "levels");
}

TEST(Jinja, DamagedTemplatesAreErrorsAtMost) {
  for (const char* name : {"qwen3.jinja", "phi-3.5.jinja"}) {
    const std::string whole =
        test::read_file(std::string(REYNARD_SOURCE_DIR "/tests/generation/chat_templates/") + name);
    test::repeat_for(1, 1000, [&](uint64_t attempt) {
      const std::string damaged =
          test::Mutator(attempt).mutate(whole, {"{%", "%}", "{{", "}}", "[", "|", "-", "range("});
      try {
        ChatTemplate::published(damaged, name).render(kTalk);
      } catch (const Error&) {
      }
    });
  }
}

}  // namespace
}  // namespace reynard::generation
