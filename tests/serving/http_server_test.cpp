#include "reynard/serving/http_server.h"

#include "reynard/tensor/error.h"
#include "tests/serving/served.h"
#include "tests/support/errors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace reynard::serving {
namespace {

using nlohmann::json;
using test::events_of;
using test::expect_error;
using test::Served;

TEST(HttpServer, CompletionIsTheEnginesText) {
  const Served served;
  const json request = {
      {"prompt", "abc"}, {"max_tokens", 12}, {"temperature", 0}, {"model", "small"}};
  const auto response = served.complete(request);
  ASSERT_EQ(response.status, 200) << response.json;
  const json& choice = response.json["choices"][0];
  EXPECT_EQ(response.json["object"], "text_completion");
  EXPECT_EQ(choice["index"], 0);
  EXPECT_FALSE(choice["text"].get<std::string>().empty());
  EXPECT_EQ(response.json["usage"]["prompt_tokens"], 4);  // with BOS
  EXPECT_EQ(served.complete(request).json["choices"], response.json["choices"]);
  // The ids of the same prompt, and texts beside others.
  json several = request;
  several["prompt"] = {{256, 97, 98, 99}, {256, 97}, {256, 97, 98, 99}};
  const json choices = served.complete(several).json["choices"];
  ASSERT_EQ(choices.size(), 3U);
  EXPECT_EQ(choices[0]["text"], choice["text"]);
  EXPECT_EQ(choices[2]["text"], choice["text"]);
  EXPECT_EQ(choices[2]["index"], 2);
}

// What the evaluation harness asks for: a score for each id of the prompt and one token more.
TEST(HttpServer, EchoedPromptsAreScored) {
  const Served served;
  const std::vector<std::vector<int64_t>> prompts = {{97, 98, 99, 100}, {7, 7}, {256}};
  const auto response = served.complete({{"prompt", prompts},
                                         {"max_tokens", 1},
                                         {"temperature", 0},
                                         {"logprobs", 1},
                                         {"echo", true},
                                         {"seed", 1234}});
  ASSERT_EQ(response.status, 200) << response.json;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const json& logprobs = response.json["choices"][p]["logprobs"];
    const std::size_t entries = prompts[p].size() + 1;
    for (const char* key : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      ASSERT_EQ(logprobs[key].size(), entries) << key;
    }
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    for (std::size_t i = 1; i < entries; ++i) {
      const json& own = logprobs["token_logprobs"][i];
      double best = -1e9;
      for (const auto& [text, logprob] : logprobs["top_logprobs"][i].items()) {
        best = std::max(best, logprob.get<double>());
      }
      EXPECT_LE(own.get<double>(), best);
      // The token that was written greedily is the best one, to the last bit.
      if (i + 1 == entries) {
        EXPECT_EQ(own.get<double>(), best);
      }
    }
  }
  const auto text = served.complete({{"prompt", "abcd"}, {"max_tokens", 0}, {"echo", true}});
  EXPECT_EQ(text.json["choices"][0]["text"], "abcd");
  EXPECT_EQ(text.json["usage"]["completion_tokens"], 0);
}

// Where each token's text begins; all bytes of a character begin where it does.
TEST(HttpServer, TextOffsetsAreThoseOfTheText) {
  const Served served;
  const auto choice_of = [&](const std::vector<int64_t>& prompt, int64_t written, bool echo) {
    return served
        .complete({{"prompt", prompt},
                   {"echo", echo},
                   {"logprobs", 0},
                   {"logit_bias", {{std::to_string(written), 100}}},
                   {"ignore_eos", true},
                   {"max_tokens", 2}})
        .json["choices"][0];
  };
  // The last byte of a character that the prompt begins, and once more, where it ends none.
  const std::vector<int64_t> prompt = {0xc3, 0xa9, 257, 'b', 0xe2, 0x82};
  const json echoed = choice_of(prompt, 0xac, true);
  EXPECT_EQ(echoed["text"], "\xc3\xa9<eos>b\xe2\x82\xac\xef\xbf\xbd");
  EXPECT_EQ(echoed["logprobs"]["text_offset"], (json{0, 0, 1, 6, 7, 7, 7, 8}));
  // BOS that is written has no text.
  const json silent = choice_of({'a'}, 256, false);
  EXPECT_EQ(silent["text"], "");
  EXPECT_EQ(silent["logprobs"]["text_offset"], (json{0, 0}));
}

TEST(HttpServer, StreamsAreTheWholeTextInPieces) {
  const Served served;
  json request = {{"prompt", {"abc", "xyz"}},
                  {"max_tokens", 20},
                  {"temperature", 1},
                  {"seed", 3},
                  {"n", 2},
                  {"logprobs", 1}};
  const json whole = served.complete(request).json;
  request["stream"] = true;
  request["stream_options"] = {{"include_usage", true}};
  const auto response = served.client().Post("/v1/completions", request.dump(), "application/json");
  ASSERT_TRUE(response);
  EXPECT_EQ(response->get_header_value("Content-Type"), "text/event-stream");
  EXPECT_EQ(response->get_header_value("Cache-Control"), "no-cache");
  std::vector<std::string> texts(4), reasons(4);
  std::vector<json> tokens(4, json::array()), offsets(4, json::array());
  const auto append = [](json& list, const json& more) {
    list.insert(list.end(), more.begin(), more.end());
  };
  json usage;
  for (const json& event : events_of(response->body)) {
    if (event.contains("usage")) usage = event["usage"];
    for (const json& choice : event["choices"]) {
      const auto index = choice["index"].get<std::size_t>();
      texts[index] += choice["text"].get<std::string>();
      append(tokens[index], choice["logprobs"]["tokens"]);
      append(offsets[index], choice["logprobs"]["text_offset"]);
      if (!choice["finish_reason"].is_null()) reasons[index] = choice["finish_reason"];
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["text"]) << i;
    EXPECT_EQ(reasons[i], whole["choices"][i]["finish_reason"]);
    EXPECT_EQ(tokens[i], whole["choices"][i]["logprobs"]["tokens"]);
    EXPECT_EQ(offsets[i], whole["choices"][i]["logprobs"]["text_offset"]);
  }
  EXPECT_EQ(usage["completion_tokens"], whole["usage"]["completion_tokens"]);
}

TEST(HttpServer, ChatWholeAndStreamed) {
  const Served served;
  json request = {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
                  {"max_tokens", 10},
                  {"temperature", 0},
                  {"logprobs", true},
                  {"top_logprobs", 2}};
  const auto whole = served.post("/v1/chat/completions", request.dump());
  ASSERT_EQ(whole.status, 200) << whole.json;
  EXPECT_EQ(whole.json["object"], "chat.completion");
  const json& choice = whole.json["choices"][0];
  EXPECT_EQ(choice["message"]["role"], "assistant");
  EXPECT_EQ(choice["logprobs"]["content"][0]["top_logprobs"].size(), 2U);
  request["stream"] = true;
  const auto streamed =
      served.client().Post("/v1/chat/completions", request.dump(), "application/json");
  ASSERT_TRUE(streamed);
  std::string text;
  bool first = true;
  for (const json& event : events_of(streamed->body)) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    const json& delta = event["choices"][0]["delta"];
    EXPECT_EQ(delta.contains("role"), first);
    first = false;
    text += delta.value("content", "");
  }
  EXPECT_EQ(text, choice["message"]["content"]);
}

TEST(HttpServer, SmallRoutes) {
  const Served served;
  httplib::Client client = served.client();
  EXPECT_EQ(client.Get("/health")->status, 200);
  EXPECT_EQ(json::parse(client.Get("/v1/models")->body)["data"][0]["id"], "small");
  EXPECT_EQ(json::parse(client.Get("/v1/models/small")->body)["id"], "small");
  EXPECT_EQ(client.Get("/v1/models/other")->status, 404);
  EXPECT_NE(client.Get("/")->body.find("<title>reynard</title>"), std::string::npos);
  const auto tokens = served.post("/tokenize", R"({"prompt": "ab"})").json["tokens"];
  EXPECT_EQ(tokens, (json{256, 97, 98}));
  EXPECT_EQ(
      served.post("/tokenize", R"({"prompt": "ab", "add_special_tokens": false})").json["tokens"],
      (json{97, 98}));
  EXPECT_EQ(served.post("/detokenize", R"({"tokens": [97, 98]})").json["prompt"], "ab");
  served.complete({{"prompt", "a"}, {"max_tokens", 3}, {"ignore_eos", true}});
  const std::string metrics = client.Get("/metrics")->body;
  EXPECT_NE(metrics.find("reynard_generated_tokens_total 3\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("reynard_requests_rejected_total 1\n"), std::string::npos) << metrics;
}

TEST(HttpServer, BestOfShowsTheBest) {
  const Served served;
  const json response = served
                            .complete({{"prompt", "ab"},
                                       {"max_tokens", 5},
                                       {"temperature", 1.5},
                                       {"n", 1},
                                       {"best_of", 5},
                                       {"seed", 1}})
                            .json;
  const json all = served
                       .complete({{"prompt", "ab"},
                                  {"max_tokens", 5},
                                  {"temperature", 1.5},
                                  {"n", 5},
                                  {"seed", 1},
                                  {"logprobs", 0}})
                       .json;
  ASSERT_EQ(response["choices"].size(), 1U);
  double best = -1e9;
  std::string text;
  for (const json& choice : all["choices"]) {
    double sum = 0;
    for (const json& logprob : choice["logprobs"]["token_logprobs"]) sum += logprob.get<double>();
    sum /= static_cast<double>(choice["logprobs"]["token_logprobs"].size());
    if (sum > best) text = choice["text"];
    best = std::max(best, sum);
  }
  EXPECT_EQ(response["choices"][0]["text"], text);
}

TEST(HttpServer, BadRequestsGetTheErrorObject) {
  const Served served({}, {}, /*max_length=*/100);
  expect_error(served.post("/v1/completions", "{"), 400, "not valid JSON");
  const Served::Response quoted = served.post("/v1/completions", "\"" + std::string(100'000, 'a'));
  expect_error(quoted, 400, "line 1, column 100002: invalid string: missing closing quote");
  EXPECT_LT(quoted.json.dump().size(), 200U);  // not the whole body once more
  expect_error(served.post("/v1/completions", "{\"prompt\": \"\xff\xfe\"}"), 400, "not valid JSON");
  expect_error(served.complete({{"max_tokens", 1}}), 400, "prompt is missing");
  expect_error(served.complete({{"prompt", std::string(200, 'a')}}), 400, "this server takes 100");
  expect_error(
      served.complete({{"prompt", "a"}, {"max_tokens", 100}}), 400, "this server takes 100");
  EXPECT_EQ(served.complete({{"prompt", "a"}, {"max_tokens", 98}}).status, 200);
  expect_error(served.complete({{"prompt", {1, 258}}}), 400, "token 258; expected 0 to 257");
  expect_error(served.complete({{"prompt", "a"}, {"logit_bias", {{"258", 1}}}}), 400, "logit_bias");
  expect_error(served.complete({{"prompt", "a"}, {"model", "other"}}), 404, "there is no model");
  expect_error(served.post("/v1/completions", R"({"prompt": "a", "model": "a\u0000b"})"),
               404,
               R"(there is no model "a\x00b"; this server has "small")");
  expect_error(served.post("/v1/nothing", "{}"), 404, "nothing at this path");
}

// Clients show users the field that is to blame.
TEST(HttpServer, ErrorsNameTheField) {
  const Served served({.max_batch = 32, .max_waiting = 40, .max_cache_tokens = 64 * 20},
                      {},
                      /*max_length=*/64 * 19,
                      "llama2");
  const auto expect = [&](const Served::Response& response,
                          const std::string& part,
                          const char* param,
                          const json& code = nullptr) {
    expect_error(response, 400, part);
    EXPECT_EQ(response.json["error"]["param"], param) << part;
    EXPECT_EQ(response.json["error"]["code"], code) << part;
  };
  const auto chat = [&](const json& messages, const json& more = json::object()) {
    json request = {{"messages", messages}};
    request.update(more);
    return served.post("/v1/chat/completions", request.dump());
  };
  const json user = {{"role", "user"}, {"content", "a"}};
  const json alone = json::array({user});
  const json cat = {{"role", "cat"}, {"content", "a"}};
  expect(chat({user, cat}), R"(messages[1].role = "cat"; expected system)", "messages[1].role");
  expect(chat({user, user}), "roles must be user and assistant by turns", "messages");
  // The limit of the engine, whatever else there is.
  for (const int n : {33, 100, 1000}) {
    expect(chat(alone, {{"n", n}}), "expected an integer from 1 to 32", "n");
    expect(served.complete({{"prompt", "a"}, {"n", n}}), "an integer from 1 to 32", "n");
    expect(served.complete({{"prompt", "a"}, {"best_of", n}}), "from 1 to 32", "best_of");
  }
  expect(served.complete({{"prompt", {"a", "b"}}, {"n", 21}}), "at most 40 texts", "prompt");
  const char* const code = "context_length_exceeded";
  const std::string together = "for each of n or best_of texts together";
  expect(chat(alone, {{"n", 2}, {"max_tokens", 1000}}), together, "n", code);
  json request = {{"prompt", "a"}, {"n", 2}, {"max_tokens", 1000}};
  expect(served.complete(request), together, "n", code);
  request.update({{"n", 1}, {"best_of", 2}});
  expect(served.complete(request), together, "best_of", code);
  expect(served.post("/detokenize", R"({"tokens": [258]})"), "258; expected 0 to 257", "tokens");
}

TEST(HttpServer, OtherMethodsAreToldWhichThePathTakes) {
  const Served served;
  const auto answer_to = [&](const std::string& method, const std::string& path) {
    httplib::Client client = served.client();
    httplib::Request request;
    request.method = method, request.path = path;
    const httplib::Result result = client.send(request);
    EXPECT_TRUE(result) << method << " " << path;
    return result ? *result : httplib::Response();
  };
  for (const char* method : {"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"}) {
    const httplib::Response response = answer_to(method, "/v1/completions");
    EXPECT_EQ(response.status, 405) << method;
    EXPECT_EQ(response.get_header_value("Allow"), "POST") << method;
    if (method == std::string("HEAD")) continue;  // has no body
    EXPECT_EQ(json::parse(response.body)["error"]["message"], "this path takes POST only");
  }
  for (const char* path : {"/", "/health", "/v1/models", "/v1/models/small"}) {
    for (const char* method : {"POST", "OPTIONS"}) {
      const httplib::Response response = answer_to(method, path);
      EXPECT_EQ(response.status, 405) << method << " " << path;
      EXPECT_EQ(response.get_header_value("Allow"), "GET, HEAD") << method << " " << path;
    }
    const httplib::Response head = answer_to("HEAD", path);
    EXPECT_EQ(head.status, 200) << path;
    EXPECT_FALSE(head.has_header("Accept-Ranges")) << path;
  }
  EXPECT_EQ(answer_to("OPTIONS", "/v1/nothing").status, 404);
  const httplib::Response whole = answer_to("OPTIONS", "*");
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.get_header_value("Allow"), "GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(whole.get_header_value("Content-Length"), "0");
  EXPECT_EQ(answer_to("GET", "*").status, 404);
  EXPECT_EQ(answer_to("GET", "/v1/models/other").status, 404);
}

TEST(HttpServer, AKeyIsAskedForWhereThereIsOne) {
  HttpOptions http;
  http.api_key = "secret";
  const Served served({}, http);
  const std::string body = R"({"prompt": "a", "max_tokens": 1})";
  expect_error(served.post("/v1/completions", body), 401, "API key");
  expect_error(
      served.post("/v1/completions", body, {{"Authorization", "Bearer secre"}}), 401, "API");
  expect_error(
      served.post("/v1/completions", body, {{"Authorization", "Bearer secrets"}}), 401, "API");
  for (const char* same : {"Bearer secret", "bearer secret", "BEARER   secret"}) {
    EXPECT_EQ(served.post("/v1/completions", body, {{"Authorization", same}}).status, 200) << same;
  }
  for (const char* other : {"Bearersecret", "secret", "Basic secret", "Bearer Secret"}) {
    const auto refused = served.post("/v1/completions", body, {{"Authorization", other}});
    EXPECT_EQ(refused.status, 401) << other;
    // RFC 9110, section 15.5.2.
    const auto challenge = refused.headers.find("WWW-Authenticate");
    EXPECT_TRUE(challenge != refused.headers.end() && challenge->second == "Bearer") << other;
  }
  EXPECT_EQ(served.client().Get("/health")->status, 200);
  EXPECT_EQ(served.client().Get("/metrics")->status, 401);
}

// Who asks for one prompt several times wants several answers, unless a seed says which.
TEST(HttpServer, EqualPromptsOfAListHaveTextsOfTheirOwn) {
  const Served served;
  json request = {
      {"prompt", {"ab", "ab"}}, {"max_tokens", 40}, {"temperature", 1}, {"ignore_eos", true}};
  const json unseeded = served.complete(request).json["choices"];
  ASSERT_EQ(unseeded.size(), 2U);
  EXPECT_NE(unseeded[0]["text"], unseeded[1]["text"]);
  request["seed"] = 5;
  const json seeded = served.complete(request).json["choices"];
  EXPECT_EQ(seeded[0]["text"], seeded[1]["text"]);
  request["prompt"] = "ab";
  EXPECT_EQ(served.complete(request).json["choices"][0]["text"], seeded[1]["text"]);
}

TEST(HttpServer, NoShareOfTheProbabilityIsTheMostProbableToken) {
  const Served served;
  nlohmann::json request = {{"prompt", "abc"}, {"max_tokens", 20}, {"temperature", 0}};
  const std::string greedy = served.complete(request).json["choices"][0]["text"];
  request.update({{"temperature", 1}, {"top_p", 0}, {"top_k", 50}, {"seed", 1}});
  EXPECT_EQ(served.complete(request).json["choices"][0]["text"], greedy);
}

TEST(HttpServer, AddressesThatCannotBeHad) {
  const Served served;
  HttpOptions http;
  http.port = served.server.port();
  models::Decoder decoder = test::byte_decoder();
  const tokenizer::ByteTokenizer tokenizer;
  Engine engine(decoder, tokenizer, {});
  EXPECT_THROW(HttpServer(engine, served.model(100), http), Error);
  EXPECT_SAYS(test::error_of([&] { check_address(http.host, http.port); }),
              "cannot be had: Address already in use; choose another with --host and --port");
  EXPECT_SAYS(test::error_of([&] { check_address("192.0.2.1", 0); }),
              "cannot be had: Cannot assign");
  check_address("127.0.0.1", 0);
  check_address("localhost", 0);
  http.port = 70000;
  EXPECT_THROW(HttpServer(engine, served.model(100), http), Error);
  http.port = 0;
  http.host = "no such host";
  EXPECT_SAYS(test::error_of([&] { HttpServer(engine, served.model(100), http); }),
              "--host no such host: the name has no address (");
}

}  // namespace
}  // namespace reynard::serving
