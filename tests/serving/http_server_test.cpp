#include "reynard/serving/http_server.h"

#include "reynard/tensor/error.h"
#include "tests/serving/served.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace reynard::serving {
namespace {

using nlohmann::json;
using test::post_text;
using test::RawClient;
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

// The events of a stream, [DONE] left out.
std::vector<json> events_of(const std::string& body) {
  std::vector<json> events;
  for (std::size_t begin = 0; begin < body.size();) {
    const std::size_t end = body.find("\n\n", begin);
    const std::string event = body.substr(begin, end - begin);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    begin = end + 2;
    if (event == "data: [DONE]") {
      EXPECT_EQ(begin, body.size());
    } else {
      events.push_back(json::parse(event.substr(6)));
    }
  }
  return events;
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
  std::vector<std::string> texts(4), reasons(4);
  std::vector<std::size_t> tokens(4, 0);
  json usage;
  for (const json& event : events_of(response->body)) {
    if (event.contains("usage")) usage = event["usage"];
    for (const json& choice : event["choices"]) {
      const auto index = choice["index"].get<std::size_t>();
      texts[index] += choice["text"].get<std::string>();
      tokens[index] += choice["logprobs"]["tokens"].size();
      if (!choice["finish_reason"].is_null()) reasons[index] = choice["finish_reason"];
    }
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["text"]) << i;
    EXPECT_EQ(reasons[i], whole["choices"][i]["finish_reason"]);
    EXPECT_EQ(tokens[i], whole["choices"][i]["logprobs"]["tokens"].size());
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

void expect_error(const Served::Response& response, int status, const std::string& part) {
  EXPECT_EQ(response.status, status) << part;
  ASSERT_TRUE(response.json.is_object() && response.json.contains("error")) << part;
  EXPECT_NE(response.json["error"]["message"].get<std::string>().find(part), std::string::npos)
      << response.json;
}

TEST(HttpServer, BadRequestsGetTheErrorObject) {
  const Served served({}, {}, /*max_length=*/100);
  expect_error(served.post("/v1/completions", "{"), 400, "not valid JSON");
  const Served::Response quoted = served.post("/v1/completions", "\"" + std::string(100'000, 'a'));
  expect_error(quoted, 400, "aaa...");  // not the whole body once more
  EXPECT_LT(quoted.json.dump().size(), 1000U);
  expect_error(served.post("/v1/completions", "{\"prompt\": \"\xff\xfe\"}"), 400, "not valid JSON");
  expect_error(served.complete({{"max_tokens", 1}}), 400, "prompt is missing");
  expect_error(served.complete({{"prompt", std::string(200, 'a')}}), 400, "this server takes 100");
  expect_error(
      served.complete({{"prompt", "a"}, {"max_tokens", 100}}), 400, "this server takes 100");
  EXPECT_EQ(served.complete({{"prompt", "a"}, {"max_tokens", 98}}).status, 200);
  expect_error(served.complete({{"prompt", {1, 258}}}), 400, "token 258; expected 0 to 257");
  expect_error(served.complete({{"prompt", "a"}, {"logit_bias", {{"258", 1}}}}), 400, "logit_bias");
  expect_error(
      served.complete({{"prompt", "a"}, {"n", 100}}), 400, "n or best_of = 100; expected 1 to 64");
  expect_error(served.complete({{"prompt", "a"}, {"model", "other"}}), 404, "there is no model");
  expect_error(
      served.post("/v1/chat/completions", R"({"messages": [{"role": "cat", "content": ""}]})"),
      400,
      "role \"cat\"");
  expect_error(served.post("/detokenize", R"({"tokens": [9999]})"), 400, "9999");
  expect_error(served.post("/v1/nothing", "{}"), 404, "nothing at this path");
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
  EXPECT_EQ(served.post("/v1/completions", body, {{"Authorization", "Bearer secret"}}).status, 200);
  EXPECT_EQ(served.client().Get("/health")->status, 200);
  EXPECT_EQ(served.client().Get("/metrics")->status, 401);
}

TEST(HttpServer, FloodsAndHugeBodiesAreCutOff) {
  HttpOptions http;
  http.limits.max_body_bytes = 5000;
  http.limits.read_seconds = http.limits.keep_alive_seconds = 1;
  const Served served({}, http);
  expect_error(served.complete({{"prompt", std::string(6000, 'a')}}), 413, "too large");
  {
    const RawClient flood(served.server.port());
    flood.send("GET /health HTTP/1.1\r\n");
    for (int i = 0; i < 300; ++i) flood.send("X-" + std::to_string(i) + ": y\r\n");
    flood.send("\r\n");
    EXPECT_EQ(flood.read_all().substr(0, 12), "HTTP/1.1 431");
  }
  {
    const RawClient flood(served.server.port());
    flood.send("GET /health HTTP/1.1\r\nX: " + std::string(100'000, 'y') + "\r\n\r\n");
    EXPECT_EQ(flood.read_all().substr(0, 12), "HTTP/1.1 431");
  }
  {
    const RawClient endless(served.server.port());
    endless.send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 20; ++i) endless.send("400\r\n" + std::string(1024, ' ') + "\r\n");
    EXPECT_EQ(endless.read_all().substr(0, 12), "HTTP/1.1 413");
  }
  // What the head says is answered before the body is there.
  const auto answer_to_head = [&](const std::string& fields) {
    const RawClient client(served.server.port());
    client.send("POST /v1/completions HTTP/1.1\r\n" + fields + "\r\n");
    return client.read_all();
  };
  EXPECT_TRUE(answer_to_head("Content-Length: 99999999999999\r\n").starts_with("HTTP/1.1 413"));
  EXPECT_TRUE(answer_to_head("Content-Length: -1\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(answer_to_head("").starts_with("HTTP/1.1 411"));
  EXPECT_TRUE(answer_to_head("Content-Length: 9\r\nContent-Encoding: gzip\r\n")
                  .starts_with("HTTP/1.1 415"));
  {
    // A client that sends everything before it reads gets its answer, too.
    const RawClient client(served.server.port());
    client.send(test::post_text(std::string(20'000'000, ' ')));
    EXPECT_TRUE(client.read_all().starts_with("HTTP/1.1 413"));
  }
  {
    const RawClient slow(served.server.port());
    slow.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
    const std::string answer = slow.read_all();  // within read_seconds
    EXPECT_TRUE(answer.empty() || answer.substr(0, 10) == "HTTP/1.1 4") << answer;
  }
  {
    const RawClient nonsense(served.server.port());
    nonsense.send(std::string("\x16\x03\x01\0\0nonsense\r\n\r\n", 17));
    EXPECT_TRUE(nonsense.read_all().starts_with("HTTP/1.1 400"));
  }
  EXPECT_EQ(served.client().Get("/health")->status, 200);
}

// What was not read of a request is never taken for the next one.
TEST(HttpServer, RestsOfRequestsAreNoRequests) {
  HttpOptions http;
  http.limits.max_body_bytes = 5000;
  http.limits.read_seconds = http.limits.keep_alive_seconds = 1;
  const Served served({}, http);
  const std::string hidden = "GET /health HTTP/1.1\r\n\r\n", length = "Content-Length: 24\r\n";
  const auto answers = [&](const std::string& sent) {
    const RawClient client(served.server.port());
    client.send(sent);
    const std::string received = client.read_all();
    int count = 0;
    for (std::size_t at = 0; (at = received.find("HTTP/1.", at)) != received.npos; ++at) ++count;
    return count;
  };
  EXPECT_EQ(answers(hidden + hidden), 2);
  for (const std::string& begin :
       {"GET /health HTTP/1.1\r\n" + length + "\r\n",
        "POST /" + std::string(9000, 'a') + " HTTP/1.1\r\n" + length + "\r\n",
        std::string("BAD\r\n"),
        std::string("POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    EXPECT_EQ(answers(begin + hidden), 1) << begin;
  }
  // A body of just as many bytes as may be is read, and so is the request behind it.
  const std::string body = R"({"prompt": "a"})" + std::string(5000 - 15, ' ');
  EXPECT_EQ(answers("POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\n"
                    "Content-Length: 5000\r\n\r\n" +
                    body + hidden),
            2);
}

// What curl -d sends is taken for JSON, as far as the library reads forms.
TEST(HttpServer, LongFormsAreToldWhatToBe) {
  const Served served({}, {}, /*max_length=*/20'000);
  httplib::Client client = served.client();
  const auto posted = [&](std::size_t length) {
    return client.Post("/v1/completions",
                       json{{"prompt", std::string(length, 'a')}, {"max_tokens", 1}}.dump(),
                       "application/x-www-form-urlencoded");
  };
  EXPECT_EQ(posted(4000)->status, 200);
  const auto refused = posted(10'000);
  EXPECT_EQ(refused->status, 413);
  EXPECT_NE(refused->body.find("send Content-Type: application/json"), std::string::npos);
}

TEST(HttpServer, FullQueueSaysWhenToComeBack) {
  const Served served({.max_batch = 1, .max_waiting = 1}, {}, /*max_length=*/100'000);
  std::atomic<int> accepted{0}, refused{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back([&] {
      const auto response =
          served.complete({{"prompt", "abc"}, {"max_tokens", 300}, {"ignore_eos", true}});
      if (response.status == 200) ++accepted;
      if (response.status != 429) return;
      EXPECT_EQ(response.headers.count("Retry-After"), 1U);
      ++refused;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(accepted + refused, 12);
  EXPECT_GE(accepted, 1);
  EXPECT_GE(refused, 1);
}

TEST(HttpServer, TooManyConnectionsAreTurnedAway) {
  HttpOptions http;
  http.max_connections = 3;
  const Served served({}, http);
  httplib::Client watching = served.client();  // by one connection
  watching.set_keep_alive(true);
  const RawClient first(served.server.port()), second(served.server.port());
  ASSERT_TRUE(test::eventually([&] {
    const auto metrics = watching.Get("/metrics");
    return metrics && metrics->body.find("reynard_connections 3\n") != std::string::npos;
  }));
  const RawClient fourth(served.server.port());
  EXPECT_TRUE(fourth.read_all().starts_with("HTTP/1.1 503"));
}

TEST(HttpServer, NoShareOfTheProbabilityIsTheMostProbableToken) {
  const Served served;
  nlohmann::json request = {{"prompt", "abc"}, {"max_tokens", 20}, {"temperature", 0}};
  const std::string greedy = served.complete(request).json["choices"][0]["text"];
  request.update({{"temperature", 1}, {"top_p", 0}, {"top_k", 50}, {"seed", 1}});
  EXPECT_EQ(served.complete(request).json["choices"][0]["text"], greedy);
}

TEST(HttpServer, WhoEndsTheirOwnSideAreToldSo) {
  const Served served({}, {}, /*max_length=*/10'000'000);
  const RawClient client(served.server.port());
  client.send(post_text(R"({"prompt": "abc", "max_tokens": 5000000, "ignore_eos": true})"));
  ::shutdown(client.socket, SHUT_WR);
  EXPECT_TRUE(client.read_all().starts_with("HTTP/1.1 400"));
}

TEST(HttpServer, ClientsThatVanishAreForgotten) {
  const Served served({}, {}, /*max_length=*/10'000'000);
  const EngineCounters& counters = served.engine.counters();
  const std::string body =
      R"({"prompt": "abc", "max_tokens": 5000000, "ignore_eos": true, "stream": STREAM})";
  for (const bool stream : {true, false}) {
    const RawClient client(served.server.port());
    std::string request = body;
    request.replace(request.find("STREAM"), 6, stream ? "true" : "false");
    client.send(post_text(request));
    const int64_t begun = stream ? 1 : 2;
    ASSERT_TRUE(test::eventually([&] { return counters.running + counters.cancelled >= begun; }));
  }
  ASSERT_TRUE(test::eventually([&] { return counters.cancelled == 2 && counters.running == 0; }));
}

// As where memory ends.
class FailingTokenizer final : public tokenizer::Tokenizer {
 public:
  std::string name() const override { return "failing"; }
  int64_t vocab_size() const override { return tokenizer::ByteTokenizer::kVocabSize; }
  std::optional<int64_t> bos() const override { return {}; }
  std::optional<int64_t> eos() const override { return {}; }
  std::size_t safe_prefix(std::string_view text) const override { return text.size(); }

 private:
  std::vector<int32_t> encode_text(std::string_view,
                                   const tokenizer::EncodeOptions&) const override {
    return {1, 2};
  }
  std::string decode_ids(std::span<const int64_t>, const tokenizer::DecodeOptions&) const override {
    throw std::bad_alloc();
  }
};

TEST(HttpServer, AnswersThatFailEndTheirTexts) {
  Served served({}, {}, /*max_length=*/10'000'000);
  const FailingTokenizer failing;
  Engine engine(served.decoder, served.tokenizer, {});
  ServedModel model = served.model(/*max_length=*/10'000'000);
  model.tokenizer = &failing;
  HttpOptions http;
  http.port = 0;
  const HttpServer server(engine, model, http);
  httplib::Client client("127.0.0.1", static_cast<int>(server.port()));
  json request = {
      {"prompt", {97, 98}}, {"max_tokens", 5'000'000}, {"ignore_eos", true}, {"logprobs", 1}};
  const auto whole = client.Post("/v1/completions", request.dump(), "application/json");
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->status, 500);
  EXPECT_TRUE(test::eventually([&] { return engine.counters().cancelled == 1; }));
  request["stream"] = true;
  EXPECT_FALSE(client.Post("/v1/completions", request.dump(), "application/json")) << "cut off";
  EXPECT_TRUE(test::eventually([&] { return engine.counters().cancelled == 2; }));
}

// 64 clients, mixed: whole and streamed, long and short, some vanish, some read slowly. Everyone
// else gets the text that a single request gets.
TEST(HttpServer, ManyClientsAtOnce) {
  const Served served({.max_batch = 24});
  std::vector<std::string> prompts, expected;
  for (int i = 0; i < 6; ++i) {
    prompts.push_back(std::string(1 + 90 * i, static_cast<char>('a' + i)));
    expected.push_back(
        served.complete({{"prompt", prompts.back()}, {"max_tokens", 16}, {"temperature", 0}})
            .json["choices"][0]["text"]);
  }
  std::atomic<int> wrong{0}, answered{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 64; ++c) {
    clients.emplace_back([&, c] {
      const std::size_t which = static_cast<std::size_t>(c) % prompts.size();
      const json request = {{"prompt", prompts[which]},
                            {"max_tokens", 16},
                            {"temperature", 0},
                            {"stream", c % 2 == 0}};
      if (c % 8 == 6) {  // vanishes after the first bytes
        const RawClient vanishing(served.server.port());
        vanishing.send(post_text(request.dump()));
        char byte = 0;
        ::recv(vanishing.socket, &byte, 1, 0);
        return;
      }
      const auto response =
          served.client().Post("/v1/completions", request.dump(), "application/json");
      if (!response || response->status != 200) {
        ADD_FAILURE() << (response ? response->body : httplib::to_string(response.error()));
        ++wrong;
        return;
      }
      std::string text;
      if (c % 2 == 0) {
        for (const json& event : events_of(response->body)) {
          for (const json& choice : event["choices"]) text += choice["text"].get<std::string>();
        }
      } else {
        text = json::parse(response->body)["choices"][0]["text"];
      }
      ++answered;
      if (text != expected[which]) ++wrong;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(answered, 56) << served.client().Get("/metrics")->body;
}

TEST(HttpServer, DrainingFinishesWhatRuns) {
  Served served({}, {}, /*max_length=*/100'000);
  const EngineCounters& counters = served.engine.counters();
  std::jthread client([&] {
    const auto response =
        served.complete({{"prompt", "abc"}, {"max_tokens", 400}, {"ignore_eos", true}});
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.json["usage"]["completion_tokens"], 400);
  });
  // It may have ended already.
  ASSERT_TRUE(test::eventually([&] { return counters.running + counters.finished > 0; }));
  std::jthread drain([&] { served.server.drain(); });
  httplib::Client late = served.client();
  ASSERT_TRUE(test::eventually([&] {
    const auto health = late.Get("/health");
    return !health || health->status == 503;
  }));
  if (const auto response =
          late.Post("/v1/completions", R"({"prompt": "a"})", "application/json")) {
    EXPECT_EQ(response->status, 503);
  }
  client.join();
  drain.join();
  EXPECT_FALSE(served.client().Get("/health"));
}

TEST(HttpServer, AddressesThatCannotBeHad) {
  const Served served;
  HttpOptions http;
  http.port = served.server.port();
  models::Decoder decoder = test::byte_decoder();
  const tokenizer::ByteTokenizer tokenizer;
  Engine engine(decoder, tokenizer, {});
  EXPECT_THROW(HttpServer(engine, served.model(100), http), Error);
  http.port = 70000;
  EXPECT_THROW(HttpServer(engine, served.model(100), http), Error);
}

}  // namespace
}  // namespace reynard::serving
