// Clients that come together, read slowly or vanish, answers that fail, and the end of a server.

#include "reynard/serving/http_server.h"

#include "tests/serving/served.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace reynard::serving {
namespace {

using nlohmann::json;
using test::events_of;
using test::post_text;
using test::RawClient;
using test::Served;

// It looks like going away, and is no fault of the request.
TEST(HttpServer, WhoEndsTheirOwnSideAreToldSo) {
  const Served served({}, {}, /*max_length=*/10'000'000);
  const auto answer_of = [&](const std::string& stream) {
    const RawClient client(served.server.port());
    client.send(
        post_text(R"({"prompt": "abc", "max_tokens": 5000000, "ignore_eos": true, "stream": )" +
                  stream + "}"));
    ::shutdown(client.socket, SHUT_WR);
    return client.read_all();
  };
  const std::string whole = answer_of("false");
  EXPECT_TRUE(whole.starts_with("HTTP/1.1 408 Request Timeout\r\n")) << whole;
  const json error = json::parse(whole.substr(whole.find("\r\n\r\n")))["error"];
  EXPECT_EQ(error["type"], "connection_error");
  EXPECT_EQ(error["message"],
            "the client ended its side of the connection before the answer was complete; it must "
            "stay open until then");
  const std::string stream = answer_of("true");
  EXPECT_TRUE(stream.starts_with("HTTP/1.1 200 ")) << stream;
  EXPECT_EQ(stream.find("[DONE]"), std::string::npos);
  ASSERT_TRUE(test::eventually([&] { return served.engine.counters().cancelled == 2; }));
}

// It has no chunks, and the end of the connection ends what has no length.
TEST(HttpServer, StreamsForHttp10AreNotInChunks) {
  const Served served;
  for (const char* wish : {"", "Connection: Keep-Alive\r\n"}) {
    const std::string body = R"({"prompt": "abc", "max_tokens": 5, "stream": true})";
    const RawClient client(served.server.port());
    client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n" + wish + "\r\n" + body);
    const std::string answer = client.read_all();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 ")) << answer;
    EXPECT_EQ(answer.find("Transfer-Encoding"), std::string::npos) << answer;
    EXPECT_TRUE(answer.ends_with("\n\ndata: [DONE]\n\n")) << answer;
    const std::size_t end = answer.find("\r\n\r\n");
    EXPECT_FALSE(events_of(answer.substr(end + 4)).empty());
  }
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
  ASSERT_TRUE(test::eventually([&] { return engine.counters().cancelled == 1; }));
  request["stream"] = true;
  EXPECT_FALSE(client.Post("/v1/completions", request.dump(), "application/json")) << "cut off";
  ASSERT_TRUE(test::eventually([&] { return engine.counters().cancelled == 2; }));
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

// Who shares requests among servers then asks others.
TEST(HttpServer, HealthSaysThatAServerEnds) {
  Served served({}, {}, /*max_length=*/100'000);
  auto endless = std::make_unique<RawClient>(served.server.port());
  endless->send(test::post_text(
      R"({"prompt": "a", "max_tokens": 90000, "ignore_eos": true, "stream": true})"));
  ASSERT_TRUE(test::eventually([&] { return served.engine.counters().running > 0; }));
  std::jthread drain([&] { served.server.drain(); });
  httplib::Client asking = served.client();
  EXPECT_TRUE(test::eventually([&] {
    const auto health = asking.Get("/health");
    return health && health->status == 503;
  }));
  endless.reset();
}

// A client that reads the first byte of an answer which no socket buffers whole, and no more.
struct StalledReader : RawClient {
  explicit StalledReader(const Served& served) : RawClient(served.server.port()) {
    const int few_bytes = 4096;
    ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &few_bytes, sizeof few_bytes);
    const timeval patience{.tv_sec = 300, .tv_usec = 0};  // as sanitizers need
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    const std::string body = json{{"prompt", std::string(3'000'000, 'a')}}.dump();
    send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body);
    char byte = 0;
    EXPECT_EQ(::recv(socket, &byte, 1, 0), 1);
  }
};

// They are given up long before write_seconds are over.
TEST(HttpServer, SlowReadersDoNotHoldAServerThatEnds) {
  HttpOptions http;
  http.limits.write_seconds = 120;
  http.drain_seconds = 1;
  const auto seconds_to_end = [&](bool drains) {
    std::optional<Served> served(std::in_place, EngineOptions{}, http);
    const StalledReader reader(*served);
    const auto begin = std::chrono::steady_clock::now();
    if (drains) served->server.drain();
    served.reset();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  EXPECT_LT(seconds_to_end(/*drains=*/false), 60);
  const double drained = seconds_to_end(/*drains=*/true);
  EXPECT_GE(drained, 1) << "the answer was not waited for";
  EXPECT_LT(drained, 60);
}

}  // namespace
}  // namespace reynard::serving
