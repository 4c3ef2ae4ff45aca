// What is more than the server takes: bodies, heads, connections, waiting texts.

#include "reynard/serving/http_server.h"

#include "tests/serving/served.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace reynard::serving {
namespace {

using nlohmann::json;
using test::expect_error;
using test::RawClient;
using test::Served;

TEST(HttpServer, FloodsAndHugeBodiesAreCutOff) {
  HttpOptions http;
  http.limits.max_body_bytes = 5000;
  http.limits.read_seconds = http.limits.keep_alive_seconds = 1;
  const Served served({}, http);
  expect_error(served.complete({{"prompt", std::string(6000, 'a')}}), 413, "too large");
  {
    const RawClient flood(served.server.port());
    flood.send("GET /health HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 300; ++i) flood.send("X-" + std::to_string(i) + ": y\r\n");
    flood.send("\r\n");
    EXPECT_EQ(flood.read_all().substr(0, 12), "HTTP/1.1 431");
  }
  {
    const RawClient flood(served.server.port());
    flood.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(100'000, 'y') +
               "\r\n\r\n");
    EXPECT_EQ(flood.read_all().substr(0, 12), "HTTP/1.1 431");
  }
  {
    const RawClient endless(served.server.port());
    endless.send(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (int i = 0; i < 20; ++i) endless.send("400\r\n" + std::string(1024, ' ') + "\r\n");
    EXPECT_EQ(endless.read_all().substr(0, 12), "HTTP/1.1 413");
  }
  // What the head says is answered before the body is there.
  const auto answer_to_head = [&](const std::string& fields) {
    const RawClient client(served.server.port());
    client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + fields + "\r\n");
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
    slow.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
    const std::string answer = slow.read_all();  // within read_seconds
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n")) << answer;
    EXPECT_NE(answer.find("\r\nConnection: close\r\n"), answer.npos) << answer;
    EXPECT_EQ(answer.find("Keep-Alive"), answer.npos) << answer;
    EXPECT_NE(answer.find("did not arrive in time"), answer.npos) << answer;
  }
  {
    // Nor does it help never to pause.
    const RawClient slow(served.server.port());
    slow.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n{");
    char byte = 0;
    int sent = 0;
    for (; sent < 300 && ::recv(slow.socket, &byte, 1, MSG_DONTWAIT | MSG_PEEK) <= 0; ++sent) {
      slow.send(" ");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_LT(sent, 300);
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
  const std::string hidden = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string length = "Content-Length: " + std::to_string(hidden.size()) + "\r\n";
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
       {"GET /health HTTP/1.1\r\nHost: localhost\r\n" + length + "\r\n",
        "POST /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n" + length + "\r\n",
        std::string("BAD\r\n"),
        std::string("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                    "chunked\r\n\r\nzz\r\n")}) {
    EXPECT_EQ(answers(begin + hidden), 1) << begin;
  }
  // A body of just as many bytes as may be is read, and so is the request behind it.
  const std::string body = R"({"prompt": "a"})" + std::string(5000 - 15, ' ');
  EXPECT_EQ(
      answers("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              "Content-Length: 5000\r\n\r\n" +
              body + hidden),
      2);
}

// Fields behind the last chunk are no part of the body; what is not to the letter is no body at
// all.
TEST(HttpServer, BodiesInChunksMayEndWithTrailerFields) {
  HttpOptions http;
  http.limits.max_header_bytes = 1000;
  http.limits.read_seconds = http.limits.keep_alive_seconds = 1;
  const Served served({}, http);
  const std::string hidden = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const auto answer_to = [&](const std::string& chunks) {
    const RawClient client(served.server.port());
    client.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
                chunks + hidden);
    return client.read_all();
  };
  const std::string body = "4;x=y\r\n{\"pr\r\n00B\r\nompt\": \"ab\"\r\n1\r\n}\r\n";
  const std::string fields = "Expires: never\r\nX-Digest: 5\r\n";
  for (const std::string& trailer : {std::string(), fields}) {
    const std::string answer = answer_to(body + "0\r\n" + trailer + "\r\n");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
    EXPECT_NE(answer.find(R"("tokens":[256,97,98])"), answer.npos) << answer;
    EXPECT_EQ(answer.find("HTTP/1.1", 1), answer.npos) << "what follows is no request";
  }
  for (const std::string& end : {"0\r\nX: " + std::string(1000, 'y') + "\r\n\r\n",
                                 "0\r\nX: y\n\r\n" + fields,
                                 "0\r\n\rX\r\n\r\n" + fields,
                                 "0x0\r\n\r\n" + fields,
                                 "-0\r\n\r\n" + fields,
                                 " 0\r\n\r\n" + fields,
                                 "0\n\r\n" + fields}) {
    EXPECT_TRUE(answer_to(body + end).starts_with("HTTP/1.1 400")) << end;
  }
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
  for (const char* type : {"multipart/form-data", "multipart/form-data; boundary=x"}) {
    const auto form = client.Post("/v1/completions", R"({"prompt": "a"})", type);
    EXPECT_EQ(form->status, 415) << type;
    EXPECT_NE(form->body.find("send Content-Type: application/json"), std::string::npos) << type;
  }
  const auto form = client.Post("/v1/completions", {{"prompt", "a", "", ""}});  // a whole one
  EXPECT_EQ(form->status, 415);
  EXPECT_NE(form->body.find("send Content-Type: application/json"), std::string::npos);
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
  const auto metrics = watching.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_NE(metrics->body.find("reynard_connections_refused_total 1\n"), std::string::npos);
}

}  // namespace
}  // namespace reynard::serving
