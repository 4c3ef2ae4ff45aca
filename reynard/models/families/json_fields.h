#pragma once
// Typed reading of a published config.json: every mismatch is a reynard::Error that names file,
// key, value and what is expected.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::models {

// A value as messages show it, cut to 80 bytes.
std::string shown_value(const nlohmann::json& value);

class JsonFields {
 public:
  // path: of an object within the file, for messages; empty: the whole.
  JsonFields(const nlohmann::json& json, const std::string& file, std::string path = "")
      : json_(json), file_(file), path_(std::move(path)) {}

  // The value, or fallback when the key is absent or null.
  int64_t integer(std::string_view key, std::optional<int64_t> fallback = {}) const;
  double number(std::string_view key, std::optional<double> fallback = {}) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  // Absent or null: nothing.
  std::optional<int64_t> optional_integer(std::string_view key) const;
  std::optional<double> optional_number(std::string_view key) const;
  // A list of strings; absent or null: empty.
  std::vector<std::string> texts(std::string_view key) const;
  // The first of several (Llama lists more than one end token), or nothing.
  std::optional<int64_t> token_id(std::string_view key) const;
  // The fields of an object, or nothing.
  std::optional<JsonFields> object(std::string_view key) const;

  // Throws unless the value is absent, null or equal to `only`: the one that we support.
  void expect(std::string_view key, const nlohmann::json& only) const;
  [[noreturn]] void reject(std::string_view key, std::string_view expected) const;
  // A list of integers; absent or null: empty.
  std::vector<int64_t> integers(std::string_view key) const;

  const nlohmann::json& json() const { return json_; }
  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }

 private:
  // The value of a key, null when absent.
  const nlohmann::json& at(std::string_view key) const;

  const nlohmann::json& json_;
  const std::string& file_;
  std::string path_;
};

}  // namespace reynard::models
