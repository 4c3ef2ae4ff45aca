#pragma once
// Fields of JSON objects in tokenizer files, checked: an error names the file and the place.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>

namespace reynard::tokenizer {

// One object of a file. `where` is how errors call it: "FILE: model.vocab".
class JsonObject {
 public:
  // Throws reynard::Error unless the value is an object.
  JsonObject(const nlohmann::json& value, std::string where);

  const std::string& where() const { return where_; }
  std::string type() const { return text("type"); }
  bool has(std::string_view key) const;  // and it is not null
  const nlohmann::json& value(std::string_view key) const;
  JsonObject object(std::string_view key) const;
  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view otherwise) const;
  bool flag_or(std::string_view key, bool otherwise) const;
  int64_t whole_number(std::string_view key, int64_t least, int64_t most) const;

  // Throws reynard::Error "WHERE: message".
  [[noreturn]] void fail(std::string_view message) const;

 private:
  const nlohmann::json& value_;
  std::string where_;
};

// Parses JSON text. Throws reynard::Error naming `where` for text that is none.
nlohmann::json parse_json(std::string_view text, const std::string& where);

}  // namespace reynard::tokenizer
