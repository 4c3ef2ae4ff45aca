#pragma once
// The header of this project's binary files: one JSON object without nesting whose first member is
// "format", padded with blanks.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace reynard::config {

// What messages say of a kind of file.
struct FileKind {
  std::string_view format;  // the value of the first member, "format"
  std::string_view name;    // "token file"
  std::string_view remedy;  // "make one with `reynard prepare`"
};

// Whether bytes begin as the header of a file of this format. What follows may be no JSON.
bool has_format(std::string_view bytes, std::string_view format);

// Every function throws reynard::Error, naming the file, for what does not fit.
class FlatHeader {
 public:
  FlatHeader(std::string_view bytes, std::filesystem::path path, const FileKind& kind);

  int64_t integer(const char* key, int64_t min, int64_t max) const;
  std::string text(const char* key) const;
  bool boolean(const char* key) const;
  bool has(const char* key) const { return json_.contains(key); }

  [[noreturn]] void fail(std::string_view what) const;

 private:
  const nlohmann::json& member(const char* key) const;

  std::filesystem::path path_;
  nlohmann::json json_;
};

}  // namespace reynard::config
