#include "reynard/protocol/requests.h"

#include "reynard/config/json_file.h"
#include "reynard/protocol/api_error.h"
#include "tests/support/mutate.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <variant>
#include <vector>

namespace reynard::protocol {
namespace {

TEST(CompletionRequest, ReadsWhatClientsSend) {
  const CompletionRequest request = parse_completion_request(R"({
    "model": "m", "prompt": ["a", [1, 2], "b"], "max_tokens": 5, "temperature": 0, "top_p": 0.5,
    "top_k": -1, "n": 2, "best_of": 3, "echo": true, "logprobs": 1, "seed": -7, "stop": ["x", "\n"],
    "logit_bias": {"5": -100, "7": 1.5}, "user": "ignored", "presence_penalty": 1,
    "stream_options": {"include_usage": true}})");
  EXPECT_EQ(request.model, "m");
  ASSERT_EQ(request.prompts.size(), 3U);
  EXPECT_EQ(std::get<std::string>(request.prompts[0]), "a");
  EXPECT_EQ(std::get<std::vector<int64_t>>(request.prompts[1]), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(request.sampling.max_tokens, 5);
  EXPECT_EQ(request.sampling.temperature, 0);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.n, 2);
  EXPECT_EQ(request.best_of, 3);
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.logprobs, 1);
  EXPECT_EQ(request.sampling.seed, static_cast<uint64_t>(-7));
  EXPECT_EQ(request.sampling.stop, (std::vector<std::string>{"x", "\n"}));
  EXPECT_EQ(request.sampling.logit_bias,
            (std::vector<std::pair<int64_t, double>>{{5, -100}, {7, 1.5}}));
  EXPECT_TRUE(request.sampling.include_usage);

  const CompletionRequest ids = parse_completion_request(R"({"prompt": [3, 4], "stop": "."})");
  EXPECT_EQ(std::get<std::vector<int64_t>>(ids.prompts.at(0)), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(ids.sampling.temperature, 1);
  EXPECT_FALSE(ids.sampling.max_tokens);
  const CompletionRequest floats = parse_completion_request(
      R"({"prompt": [3.0, 4], "max_tokens": 3.0, "seed": -1e3, "suffix": ""})");
  EXPECT_EQ(std::get<std::vector<int64_t>>(floats.prompts.at(0)), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(floats.sampling.max_tokens, 3);
  EXPECT_EQ(floats.sampling.seed, static_cast<uint64_t>(-1000));
  // The harness sends an empty list where nothing stops.
  EXPECT_TRUE(parse_completion_request(R"({"prompt": "", "stop": []})").sampling.stop.empty());
}

TEST(ChatRequest, ReadsMessagesAndTheirParts) {
  const ChatRequest request = parse_chat_request(R"({
    "messages": [{"role": "system", "content": "s"},
                 {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                 {"role": "assistant", "content": null}],
    "max_tokens": 7, "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 3, "tools": []})");
  ASSERT_EQ(request.messages.size(), 3U);
  EXPECT_EQ(request.messages[1].content, "ab");
  EXPECT_EQ(request.messages[2].content, "");
  const ChatRequest newer =
      parse_chat_request(R"({"messages": [{"role": "developer", "content": "s"}]})");
  EXPECT_EQ(newer.messages[0].role, "system");
  EXPECT_EQ(request.sampling.max_tokens, 9);
  EXPECT_TRUE(request.logprobs);
  EXPECT_EQ(request.top_logprobs, 3);
}

CompletionRequest completion(const std::string& body) {
  return parse_completion_request(body);
}

ChatRequest chat(const std::string& body) {
  return parse_chat_request(body);
}

// Returns which field is to blame.
template <class Parse>
std::string expect_rejected(const Parse& parse, const std::string& body, const std::string& part) {
  try {
    parse(body);
    ADD_FAILURE() << "accepted: " << body;
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    return error.param;
  }
  return {};
}

TEST(CompletionRequest, NamesWhatIsWrong) {
  const auto expect = [](const std::string& body, const std::string& part) {
    expect_rejected(completion, body, part);
  };
  expect("", "the body is not valid JSON: line 1, column 1: unexpected end of input");
  expect("{\"prompt\": \"\xff\"}",
         "the body is not valid JSON: line 1, column 13: invalid string: ill-formed UTF-8 byte");
  expect("[1]", "not a JSON object");
  expect(std::string(100, '[') + std::string(100, ']'), "nested deeper");
  expect("{}", "prompt is missing");
  expect(R"({"prompt": []})", "prompt = []");
  expect(R"({"prompt": [[]]})", "prompt");
  expect(R"({"prompt": [1, "a"]})", "prompt holds \"a\"");
  expect(R"({"prompt": [1, -1]})", "prompt holds -1");
  expect(R"({"prompt": [1, 1.5]})", "prompt holds 1.5");
  expect(R"({"prompt": [18446744073709551615]})", "prompt holds");
  expect(R"({"prompt": 5})", "prompt = 5");
  expect(R"({"prompt": "a", "max_tokens": -1})", "max_tokens = -1; expected an integer from 0");
  expect(R"({"prompt": "a", "max_tokens": "5"})", "max_tokens");
  expect(R"({"prompt": "a", "max_tokens": 3.5})", "max_tokens = 3.5; expected an integer from 0");
  expect(R"({"prompt": "a", "max_tokens": -1.0})", "max_tokens = -1.0; expected an integer");
  expect(R"({"prompt": "a", "seed": 9223372036854775808.0})", "seed");
  expect(R"({"prompt": "a", "temperature": -0.1})", "temperature");
  expect(R"({"prompt": "a", "temperature": 1e999})",
         "the body is not valid JSON: the number '1e999' is too large");
  expect(R"({"prompt": "a", "top_p": 1.1})", "top_p");
  expect(R"({"prompt": "a", "response_format": {"type": "json_object"}})", "response_format");
  expect(R"({"prompt": "a", "n": 0})", "n = 0");
  expect(R"({"prompt": "a", "n": 3, "best_of": 2})", "best_of");
  expect(R"({"prompt": "a", "best_of": 2, "stream": true})", "best_of");
  expect(R"({"prompt": "a", "stop": ["b", ""]})", "stop");
  expect(R"({"prompt": "a", "stop": [5]})", "stop");
  expect(R"({"prompt": "a", "logit_bias": {"x": 1}})", "logit_bias");
  expect(R"({"prompt": "a", "logit_bias": {"1": 101}})",
         "at most 4096 token ids, each with a number from -100 to 100");
  expect(std::string("{\"prompt\": \"a\"}\0", 16), "line 1, column 16: a zero byte");
  expect(R"({"prompt": "a", "logprobs": 101})", "logprobs");
  expect(R"({"prompt": "a", "stream": 1})", "stream = 1; expected true or false");
  expect(R"({"prompt": "a", "stream_options": 1})", "stream_options");
  expect(R"({"prompt": "a", "suffix": "b"})", "suffix = \"b\"; expected an empty string");
  expect(R"({"prompt": "a", "suffix": 5})", "suffix = 5; expected a string");
  expect(R"({"prompt": "a", "model": 1})", "model");
}

// Every token is compared with all of them.
TEST(Requests, StopStringsAreShort) {
  const auto with_stop = [](const std::string& fields, std::size_t bytes) {
    return "{" + fields + R"(, "stop": ["x", ")" + std::string(bytes, 'a') + "\"]}";
  };
  const std::string prompt = R"("prompt": "a")";
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}])";
  const char* const limit = "expected strings of 1 to 1024 bytes";
  EXPECT_EQ(completion(with_stop(prompt, 1024)).sampling.stop[1].size(), 1024U);
  EXPECT_EQ(expect_rejected(completion, with_stop(prompt, 1025), limit), "stop");
  EXPECT_EQ(expect_rejected(chat, with_stop(messages, 1025), limit), "stop");
  EXPECT_EQ(expect_rejected(completion, with_stop(prompt, 0), limit), "stop");
}

TEST(CompletionRequest, TextsAreLimitedByTheServerAlone) {
  const auto request_of = [](const std::string& fields) {
    return parse_completion_request("{" + fields + "}", {.per_prompt = 300, .per_request = 600});
  };
  const auto expect = [&](const std::string& fields, const char* part, const char* param) {
    EXPECT_EQ(expect_rejected(request_of, fields, part), param) << fields;
  };
  EXPECT_EQ(request_of(R"("prompt": ["a", "b"], "n": 300)").sampling.n, 300);
  expect(R"("prompt": "a", "n": 301)", "n = 301; expected an integer from 1 to 300", "n");
  expect(R"("prompt": "a", "best_of": 301)", "expected an integer from 1 to 300", "best_of");
  expect(R"("prompt": ["a", "b", "c"], "best_of": 201)",
         "at most 600 texts of all prompts together, 201 of each",
         "prompt");
  std::string prompts = R"("a")";
  for (int i = 1; i < 600; ++i) prompts += R"(, "a")";
  EXPECT_EQ(request_of(R"("prompt": [)" + prompts + "]").prompts.size(), 600U);
  expect(R"("prompt": [)" + prompts + R"(, "a"])", "a list of 1 to 600 of these", "prompt");
}

TEST(ChatRequest, NamesWhatIsWrong) {
  const auto expect = [](const std::string& body, const std::string& part) {
    expect_rejected(chat, body, part);
  };
  for (const auto& [role, error] :
       {std::pair("null", "messages[0].role is missing; expected system, developer, user or"),
        {R"("cat")", R"(messages[0].role = "cat"; expected system, developer, user or assistant)"},
        {R"("a\u0000b")", R"(messages[0].role = "a\u0000b"; expected)"},
        {"5", "messages[0].role = 5; expected a string"}}) {
    const std::string body =
        std::string(R"({"messages": [{"role": )") + role + R"(, "content": ""}]})";
    EXPECT_EQ(expect_rejected(chat, body, error), "messages[0].role") << role;
  }
  expect("{}", "messages is missing");
  expect(R"({"messages": []})", "messages = []; expected a list of 1 to 4096 messages");
  expect(R"({"messages": ["a"]})", "messages[0]");
  expect(R"({"messages": [{"content": "a"}]})", "messages[0].role is missing");
  expect(R"({"messages": [{"role": "user", "content": 5}]})", "messages[0].content");
  expect(R"({"messages": [{"role": "user"}]})", "messages[0].content");
  expect(R"({"messages": [{"role": "user", "content": null}]})", "messages[0].content");
  expect(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})",
         "messages[0].content");
  expect(R"({"messages": [{"role": "user"}], "tools": [{}]})", "tools");
  const std::string hello = R"({"messages": [{"role": "user", "content": "Hello"}], )";
  expect(hello + R"("top_logprobs": 2})", "top_logprobs = 2; expected 0 unless logprobs is true");
  expect(hello + R"("tool_choice": "required"})", "tool_choice");
  expect(hello + R"("echo": true})", "echo = true; expected false");
  expect(hello + R"("n": 2, "best_of": 3})", "best_of = 3; expected at most n");
  expect(hello + R"("response_format": {"type": "json_schema"}})", "response_format");
  expect(hello + R"("functions": [{}], "tool_choice": "none"})", "functions");
  // None of them is to be called.
  for (const char* uncalled : {R"("tools": [{}], "tool_choice": "none"})",
                               R"("functions": [{}], "function_call": "none"})"}) {
    EXPECT_EQ(parse_chat_request(hello + uncalled, {}).messages.size(), 1) << uncalled;
  }
  EXPECT_EQ(
      parse_chat_request(hello + R"("response_format": {"type": "text"}, "tool_choice": "none",
                                          "top_logprobs": 0, "echo": false, "n": 2, "best_of": 2})")
          .messages.size(),
      1);
}

TEST(TokenizeRequest, ReadsAndRejects) {
  EXPECT_EQ(parse_tokenize_request(R"({"prompt": "a"})").text, "a");
  EXPECT_FALSE(
      parse_tokenize_request(R"({"prompt": "a", "add_special_tokens": false})").add_special_tokens);
  EXPECT_EQ(parse_detokenize_request(R"({"tokens": [1, 2]})"), (std::vector<int64_t>{1, 2}));
  expect_rejected(parse_tokenize_request, R"({"prompt": [1]})", "prompt");
  expect_rejected(parse_detokenize_request, R"({"tokens": "a"})", "tokens");
  expect_rejected(
      parse_detokenize_request, "{}", "tokens is missing; expected a list of token ids");
}

// Whatever comes in, it is read or refused with a 4xx; nothing else is thrown.
TEST(Requests, NonsenseIsRefused) {
  const std::vector<std::string> seeds = {
      R"({"prompt": ["a", [1, 2]], "max_tokens": 5, "temperature": 0.5, "logit_bias": {"5": -1}, "stop": ["x"], "stream_options": {"include_usage": true}, "n": 2})",
      R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "top_logprobs": 3, "seed": 1})",
      R"({"prompt": "caf\u00e9", "add_special_tokens": false, "tokens": [1, 2, 3]})"};
  const std::vector<std::string> words = {"null",
                                          "true",
                                          "1e400",
                                          "\"prompt\":",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          "\\ud800",
                                          "\xc3",
                                          "18446744073709551616",
                                          "-1",
                                          "\"n\":"};
  test::Mutator mutator(1);
  test::repeat_for(1.5, 20000, [&](uint64_t attempt) {
    const std::string body = mutator.mutate(seeds[attempt % seeds.size()], words);
    const auto try_to = [&](const auto& parse) {
      try {
        parse(body);
      } catch (const ApiError& error) {
        EXPECT_EQ(error.status, 400);
        EXPECT_FALSE(config::json_text(to_json(error)).empty());
      }
    };
    try_to(completion);
    try_to(chat);
    try_to(parse_tokenize_request);
    try_to(parse_detokenize_request);
  });
}

}  // namespace
}  // namespace reynard::protocol
