#pragma once
// Typed reading of a request's JSON object: every mismatch is an ApiError 400 that names the field.
// Fields that nobody asks for are ignored, as clients send many.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::protocol {

// The JSON object of a body. Throws ApiError 400 for anything else: broken JSON, text that is not
// UTF-8, nesting deeper than any request's.
nlohmann::json parse_body(std::string_view body);

class RequestFields {
 public:
  explicit RequestFields(const nlohmann::json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // The value; nothing (or fallback) when the field is absent or null. 3.0 is an integer.
  std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
  std::optional<double> number(std::string_view key, double low, double high) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::optional<std::string> text(std::string_view key) const;
  // A string, or a list of at most `most` strings.
  std::vector<std::string> texts(std::string_view key, std::size_t most) const;
  const nlohmann::json& at(std::string_view key) const;  // null when absent

  [[noreturn]] void reject(std::string_view key, std::string_view expected) const;

 private:
  const nlohmann::json& object_;
  std::string prefix_;  // of field names in messages: "stream_options."
};

// A list of token ids: integers from 0 on. Throws ApiError 400 naming the field.
std::vector<int64_t> token_ids(const nlohmann::json& list, const std::string& field);

}  // namespace reynard::protocol
