#pragma once
// Typed reading of a published config.json: every mismatch is a reynard::Error that names file,
// key, value and what is expected.

#include "reynard/config/fields.h"

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
  // problems: is told what the file calls the keys of a config, and their values (`of`).
  // path: of an object within the file, for messages; empty: the whole.
  JsonFields(const nlohmann::json& json,
             const std::string& file,
             config::Problems* problems = nullptr,
             std::string path = "")
      : json_(json), file_(file), problems_(problems), path_(std::move(path)) {}

  // The same fields; what is read is the value of a key of DecoderConfig, which messages of its
  // check then call by the name in the file. Of several that are read for a key the last counts
  // that the file has.
  JsonFields of(std::string_view config_key) const;

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

  // The value of a key, null when absent.
  const nlohmann::json& at(std::string_view key) const;
  const nlohmann::json& json() const { return json_; }
  const std::string& file() const { return file_; }
  const std::string& path() const { return path_; }

 private:
  const nlohmann::json& json_;
  const std::string& file_;
  config::Problems* problems_;
  std::string path_;
  std::string config_key_;
};

}  // namespace reynard::models
