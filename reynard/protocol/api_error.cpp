#include "reynard/protocol/api_error.h"

#include <nlohmann/json.hpp>

namespace reynard::protocol {

namespace {

std::string type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "connection_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

nlohmann::ordered_json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

}  // namespace

nlohmann::ordered_json to_json(const ApiError& error) {
  return {{"error",
           {{"message", error.what()},
            {"type", type_of(error.status)},
            {"param", text_or_null(error.param)},
            {"code", text_or_null(error.code)}}}};
}

}  // namespace reynard::protocol
