#pragma once
// The error of the OpenAI API: an HTTP status and the object that clients read. Thrown by whatever
// refuses a request, written in one place.

#include <nlohmann/json_fwd.hpp>

#include <stdexcept>
#include <string>

namespace reynard::protocol {

struct ApiError : std::runtime_error {
  ApiError(int http_status, const std::string& message, std::string parameter = "")
      : std::runtime_error(message), status(http_status), param(std::move(parameter)) {}

  int status;             // 4xx: the request is at fault, or its connection (408); 5xx: the server
  std::string param;      // which field of the request; empty: none
  std::string code = {};  // "model_not_found", ...; empty: none
  int retry_after_s = 0;  // for 429 and 503; 0: not said
};

// {"error": {"message", "type", "param", "code"}}
nlohmann::ordered_json to_json(const ApiError& error);

}  // namespace reynard::protocol
