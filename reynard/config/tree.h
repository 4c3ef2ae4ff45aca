#pragma once
// The plain tree between text and structs: what a TOML or JSON file says, with the place of every
// value. Parsers fill it, readers walk it, writers print it. It knows nothing of any struct.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace reynard::config {

struct Node;

// A value of the command line: its type is that of the field it is given to.
struct RawText {
  std::string text;
};

// Keys in the order of the file.
struct Table {
  std::vector<std::pair<std::string, Node>> entries;

  // Defaulted out of line, where Node is complete.
  Table();
  Table(const Table&);
  Table(Table&&) noexcept;
  Table& operator=(const Table&);
  Table& operator=(Table&&) noexcept;
  ~Table();

  Node* find(std::string_view name);
  const Node* find(std::string_view name) const;
  Node& add(std::string name, Node node);
};

struct Node {
  std::variant<std::monostate,  // JSON null
               bool,
               int64_t,
               double,
               std::string,
               RawText,
               std::vector<Node>,
               Table>
      value;
  std::string where;  // "file.toml:12", "--section.key", or the file's name
};

// What walks a tree calls itself once a part of a key.
constexpr int kMostKeyParts = 16;

// Parse a whole text; throw reynard::Error with file and line when it is not TOML (or JSON).
// source: the name shown in messages.
Table parse_toml(std::string_view text, const std::string& source);
Table parse_json(std::string_view text, const std::string& source);

// The whole file as text; throws reynard::Error when it is missing, unreadable or not a config by
// its size (more than 16 MiB).
std::string read_config_file(const std::filesystem::path& file);

// Puts "--section.key=value" into the tree; throws reynard::Error for anything of another form, for
// a key that an override before it has given, and for one that is a value and a section.
void apply_override(Table& root, std::string_view argument);

std::string print_toml(const Table& root);
std::string print_json(const Table& root);

// One value as it is written in TOML; what messages and help show.
std::string value_text(const Node& node);
// The same as "--section.key=TEXT" takes it: names and strings stand without quotes.
std::string override_text(const Node& node);
// The kind of a value in words: "a string", "an integer".
std::string_view kind_text(const Node& node);

}  // namespace reynard::config
