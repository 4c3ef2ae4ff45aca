#pragma once
// A server for tests that answers one route of the OpenAI API as the test says.

#include "reynard/evaluation/endpoint.h"
#include "reynard/http/listener.h"

#include <fmt/format.h>
#include <httplib.h>

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::test {

// A server on a free port whose completions are what a function makes of the request's JSON.
class StubServer {
 public:
  using Answer = std::function<void(const nlohmann::json& body, httplib::Response& response)>;
  explicit StubServer(Answer answer, const std::string& route = "/v1/completions") {
    server_.Post(route,
                 [this, answer = std::move(answer)](const httplib::Request& request,
                                                    httplib::Response& response) {
                   {
                     const std::scoped_lock lock(mutex_);
                     bodies_.push_back(nlohmann::json::parse(request.body));
                     key_ = request.get_header_value("Authorization");
                   }
                   answer(nlohmann::json::parse(request.body), response);
                 });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = http::listen(server_);
  }
  ~StubServer() {
    server_.close_idle();
    server_.stop();
    thread_.join();
  }
  StubServer(const StubServer&) = delete;
  StubServer& operator=(const StubServer&) = delete;

  evaluation::EndpointOptions options(int64_t attempts = 1) const {
    return {.url = fmt::format("http://127.0.0.1:{}", port_),
            .model = "stub",
            .timeout_s = 30,
            .retries = {.attempts = attempts, .first_pause_s = 0.01}};
  }
  std::vector<nlohmann::json> bodies() const {
    const std::scoped_lock lock(mutex_);
    return bodies_;
  }
  std::string key() const {
    const std::scoped_lock lock(mutex_);
    return key_;
  }

 private:
  http::Listener server_{{}, /*max_connections=*/64};
  int port_ = 0;
  std::thread thread_;
  mutable std::mutex mutex_;
  std::vector<nlohmann::json> bodies_;
  std::string key_;
};

inline void answer_json(httplib::Response& response, const nlohmann::json& body) {
  response.set_content(body.dump(), "application/json");
}

}  // namespace reynard::test
