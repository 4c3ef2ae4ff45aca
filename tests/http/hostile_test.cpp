// Requests that were damaged on their way, read by the limits of connection.h, the HTTP library and
// the parsers of requests: each is answered or closed, and the listener goes on.

#include "reynard/config/json_file.h"
#include "reynard/http/listener.h"
#include "reynard/protocol/api_error.h"
#include "reynard/protocol/requests.h"
#include "tests/support/mutate.h"
#include "tests/support/raw_client.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <thread>

namespace reynard::http {
namespace {

// Parses what it is sent, as the server does, and answers "parsed" or the error.
class ParsingServer {
 public:
  ParsingServer() : listener_({.keep_alive_seconds = 1, .read_seconds = 1}, /*max_connections=*/8) {
    const auto parsed_by = [](auto parse) {
      return [parse](const httplib::Request& request, httplib::Response& response) {
        try {
          parse(request.body);
          response.set_content("parsed", "text/plain");
        } catch (const protocol::ApiError& error) {
          response.status = error.status;
          response.set_content(config::json_text(protocol::to_json(error)), "application/json");
        }
      };
    };
    listener_.Post("/v1/completions", parsed_by([](const std::string& body) {
                     return protocol::parse_completion_request(body);
                   }));
    listener_.Post("/v1/chat/completions", parsed_by([](const std::string& body) {
                     return protocol::parse_chat_request(body);
                   }));
    listener_.Post("/tokenize", parsed_by(&protocol::parse_tokenize_request));
    listener_.Post("/detokenize", parsed_by(&protocol::parse_detokenize_request));
    port_ = listener_.bind_to_any_port("127.0.0.1");
    thread_ = listen(listener_);
  }
  ~ParsingServer() {
    listener_.close_idle();
    listener_.stop();
    thread_.join();
  }
  ParsingServer(const ParsingServer&) = delete;
  ParsingServer& operator=(const ParsingServer&) = delete;
  int port() const { return port_; }

 private:
  Listener listener_;
  int port_ = 0;
  std::thread thread_;
};

std::string request_text(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string answer_to(const ParsingServer& server, const std::string& request) {
  const test::RawClient client(server.port());
  client.send(request);
  ::shutdown(client.socket, SHUT_WR);
  return client.read_all();
}

TEST(HostileRequests, AreAnsweredOrClosed) {
  const ParsingServer server;
  const std::string whole[] = {
      request_text(
          "/v1/completions",
          R"({"prompt": ["a", "\u00fc"], "max_tokens": 2, "temperature": 0.5, "stop": ["x"],)"
          R"( "logit_bias": {"5": -1}, "stream_options": {"include_usage": true}})"),
      request_text(
          "/v1/chat/completions",
          R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]})"),
      request_text("/tokenize", R"({"prompt": "abc", "add_special_tokens": false})"),
      request_text("/detokenize", R"({"tokens": [1, 2, 3]})")};
  for (const std::string& request : whole) {
    EXPECT_TRUE(answer_to(server, request).ends_with("parsed")) << request;
  }
  const std::string null(1, '\0');
  test::repeat_for(3, 2000, [&](uint64_t attempt) {
    const std::string damaged = test::Mutator(attempt).mutate(whole[attempt % 4],
                                                              {"\r\n",
                                                               "\r\n\r\n",
                                                               "Host: y",
                                                               "Content-Length: 5",
                                                               "Transfer-Encoding: chunked",
                                                               "Expect: 100-continue",
                                                               "Content-Type: multipart/form-data",
                                                               "HTTP/9.9",
                                                               "http://",
                                                               "http://a:1",
                                                               "\\ud800",
                                                               "1e999",
                                                               "[[[[",
                                                               "%",
                                                               null});
    const std::string answer = answer_to(server, damaged);
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 ")) << answer << "\nfor " << damaged;
  });
  EXPECT_TRUE(answer_to(server, whole[0]).ends_with("parsed"));
}

}  // namespace
}  // namespace reynard::http
