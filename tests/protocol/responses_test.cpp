#include "reynard/protocol/responses.h"

#include "reynard/config/json_file.h"
#include "reynard/protocol/api_error.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace reynard::protocol {
namespace {

const Envelope kEnvelope = {.id = "cmpl-1", .created = 7, .model = "m"};

TEST(CompletionResponse, ScoresAsTheHarnessReadsThem) {
  Choice choice{.index = 0, .text = "ab", .finish_reason = "length"};
  choice.prompt_logprobs = std::make_shared<const std::vector<TokenLogprob>>(
      1, TokenLogprob{.text = "a", .logprob = {}, .top = {}, .text_offset = 0});
  choice.logprobs.emplace();
  choice.logprobs->push_back(
      {.text = "b", .logprob = -0.1F, .top = {{"b", -0.1F}}, .text_offset = 1});
  choice.logprobs->push_back(
      {.text = "c", .logprob = -3.0F, .top = {{"d", -0.2F}}, .text_offset = 2});
  const auto json = completion_json(kEnvelope, std::span(&choice, 1), Usage{3, 1, 0});
  EXPECT_EQ(json["object"], "text_completion");
  const auto& logprobs = json["choices"][0]["logprobs"];
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  // Greedy hits are told by equal numbers.
  EXPECT_EQ(logprobs["top_logprobs"][1]["b"].dump(), logprobs["token_logprobs"][1].dump());
  EXPECT_EQ(logprobs["top_logprobs"][2].size(), 2U);
  EXPECT_EQ(logprobs["text_offset"], (nlohmann::ordered_json{0, 1, 2}));
  EXPECT_EQ(json["usage"]["total_tokens"], 4);
}

TEST(CompletionResponse, OfEqualTextsTheTokensOwnStays) {
  Choice choice{.index = 0, .text = ""};
  choice.logprobs.emplace();
  choice.logprobs->push_back(
      {.text = "\xff", .logprob = -2.0F, .top = {{"\xfe", -1.0F}, {"\xff", -2.0F}}});
  const auto json = completion_json(kEnvelope, std::span(&choice, 1), {});
  const auto& top = json["choices"][0]["logprobs"]["top_logprobs"][0];
  ASSERT_EQ(top.size(), 1U);
  EXPECT_EQ(top["\xef\xbf\xbd"], -2.0);
  EXPECT_TRUE(json["choices"][0]["finish_reason"].is_null());
  EXPECT_FALSE(json.contains("usage"));
  EXPECT_NO_THROW(config::json_text(json));
}

TEST(ChatResponse, WholeAndInChunks) {
  Choice choice{.index = 1, .text = "hi", .finish_reason = "stop"};
  choice.logprobs.emplace();
  const float never = -std::numeric_limits<float>::infinity();
  choice.logprobs->push_back({.text = "hi", .logprob = never, .top = {}});
  const auto whole = chat_json(kEnvelope, std::span(&choice, 1), Usage{});
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "hi");
  EXPECT_EQ(whole["choices"][0]["logprobs"]["content"][0]["logprob"], -9999.0);
  EXPECT_EQ(whole["choices"][0]["logprobs"]["content"][0]["bytes"],
            (nlohmann::ordered_json{104, 105}));
  const auto chunk = chat_chunk_json(kEnvelope, std::span(&choice, 1), {}, true);
  EXPECT_EQ(chunk["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunk["choices"][0]["delta"]["content"], "hi");
  choice.text.clear();
  const auto role = chat_chunk_json(kEnvelope, std::span(&choice, 1), {}, /*with_role=*/true);
  EXPECT_EQ(role["choices"][0]["delta"]["content"], "");
  const auto last = chat_chunk_json(kEnvelope, std::span(&choice, 1), {}, /*with_role=*/false);
  EXPECT_EQ(last["choices"][0]["delta"], nlohmann::ordered_json::object());
  const std::string event = server_sent_event(chunk);
  EXPECT_TRUE(event.starts_with("data: {"));
  EXPECT_TRUE(event.ends_with("}\n\n"));
}

// Python's splitlines(), by which some clients read streams, ends lines at them.
TEST(ServerSentEvent, IsOneLineForAllReaders) {
  const std::string text = "a\u2028b\u2029c\u0085d\x0b\x0c\x1c\x1d\x1e\r\n\u00e9\u2027";
  const std::string event = server_sent_event({{"text", text}});
  EXPECT_EQ(event,
            R"(data: {"text":"a\u2028b\u2029c\u0085d\u000b\f\u001c\u001d\u001e\r\n)"
            "\u00e9\u2027\"}\n\n");
  EXPECT_EQ(nlohmann::json::parse(event.substr(6))["text"], text);
}

TEST(ApiError, IsTheObjectThatClientsRead) {
  ApiError error(404, "no", "model");
  error.code = "model_not_found";
  const auto json = to_json(error);
  EXPECT_EQ(json["error"]["message"], "no");
  EXPECT_EQ(json["error"]["param"], "model");
  EXPECT_EQ(json["error"]["code"], "model_not_found");
  EXPECT_TRUE(to_json(ApiError(400, "x"))["error"]["param"].is_null());
  EXPECT_EQ(to_json(ApiError(500, "x"))["error"]["type"], "server_error");
  EXPECT_EQ(to_json(ApiError(408, "x"))["error"]["type"], "connection_error");
}

}  // namespace
}  // namespace reynard::protocol
