#pragma once
// An OpenAI-compatible server as a client sees it: JSON is posted, and what fails, stalls or
// answers nonsense is asked again with growing pauses. What the answers mean is the caller's
// business.

#include "reynard/evaluation/retries.h"

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

namespace reynard::evaluation {

struct EndpointOptions {
  std::string url;           // http://HOST[:PORT][/v1]
  std::string model = {};    // its name there
  std::string api_key = {};  // empty: none is sent
  bool chat = false;         // text comes from chat/completions; there are no log-probabilities
  double timeout_s = 600;    // for every whole answer
  size_t longest_answer = size_t{1} << 30;  // bytes
  RetryOptions retries = {};
};

class Endpoint {
 public:
  // Throws reynard::Error for what is no URL.
  explicit Endpoint(EndpointOptions options);

  const EndpointOptions& options() const { return options_; }
  // Of a route: route_url("completions") is http://HOST:PORT/v1/completions.
  std::string route_url(const std::string& route) const;
  // The JSON object answered at a route below /v1 that has a list under `list`. A refusal (4xx but
  // 408 and 429) and an answer that is too long throw reynard::Error at once, everything else when
  // no attempt is left. Threads may ask at once: each request has a connection of its own.
  nlohmann::json post(const std::string& route,
                      const nlohmann::json& body,
                      const std::string& list) const;
  nlohmann::json get(const std::string& route, const std::string& list) const;

 private:
  nlohmann::json ask(const std::string& route,
                     const std::string& body,
                     const std::string& list) const;

  EndpointOptions options_;
  std::string host_;  // scheme://host:port
  std::string base_;  // path before the route, without a slash at its end
};

}  // namespace reynard::evaluation
