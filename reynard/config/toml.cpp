// TOML text -> tree, with toml++: the only file that includes it.

#include "reynard/config/tree.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <sstream>

namespace reynard::config {

namespace {

std::string place(const std::string& source, const toml::source_region& region) {
  return fmt::format("{}:{}", source, region.begin.line);
}

constexpr int kMostKeyParts = 16;

// Where the part of a dotted key that begins here ends: a bare or a quoted one; 0: none begins.
size_t key_part_size(std::string_view text) {
  const char quote = text[0];
  if (quote != '"' && quote != '\'') {
    size_t size = 0;
    while (size < text.size() && (std::isalnum(static_cast<unsigned char>(text[size])) != 0 ||
                                  text[size] == '_' || text[size] == '-')) {
      ++size;
    }
    return size;
  }
  for (size_t i = 1; i < text.size() && text[i] != '\n'; ++i) {
    if (text[i] == quote) return i + 1;
    if (text[i] == '\\' && quote == '"') ++i;
  }
  return 0;
}

// toml++ bounds how deep values lie in each other, but a key of n parts makes n tables without
// bound, and whoever walks through tables calls itself for each.
void check_keys(std::string_view text, const std::string& source) {
  int line = 1, parts = 0;
  bool behind_dot = false;
  for (size_t i = 0; i < text.size();) {
    if (const size_t size = key_part_size(text.substr(i)); size > 0) {
      parts = behind_dot ? parts + 1 : 1;
      behind_dot = false;
      if (parts > kMostKeyParts) {
        throw Error(fmt::format("{}:{}: a key of more than {} parts; expected [section.name]",
                                source,
                                line,
                                kMostKeyParts));
      }
      i += size;
      continue;
    }
    const char c = text[i++];
    line += c == '\n' ? 1 : 0;
    if (c == ' ' || c == '\t') continue;
    behind_dot = c == '.' && parts > 0;
    if (!behind_dot) parts = 0;
  }
}

Node convert(const toml::node& from, const std::string& source);

Table convert_table(const toml::table& from, const std::string& source) {
  std::vector<std::pair<toml::source_position, std::pair<std::string, Node>>> sorted;
  for (const auto& [name, value] : from) {
    Node node = convert(value, source);
    // The key's place is better than the value's: a value may span lines.
    if (name.source().begin) node.where = place(source, name.source());
    sorted.push_back({name.source().begin, {std::string(name.str()), std::move(node)}});
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.first < b.first;  // toml++ keeps keys by name, we by place
  });
  Table table;
  for (auto& [position, entry] : sorted) table.entries.push_back(std::move(entry));
  return table;
}

Node convert(const toml::node& from, const std::string& source) {
  Node node;
  node.where = place(source, from.source());
  if (const auto* table = from.as_table()) {
    node.value = convert_table(*table, source);
  } else if (const auto* list = from.as_array()) {
    std::vector<Node> items;
    for (const auto& item : *list) items.push_back(convert(item, source));
    node.value = std::move(items);
  } else if (const auto* text = from.as_string()) {
    node.value = text->get();
  } else if (const auto* integer = from.as_integer()) {
    node.value = integer->get();
  } else if (const auto* number = from.as_floating_point()) {
    node.value = number->get();
  } else if (const auto* flag = from.as_boolean()) {
    node.value = flag->get();
  } else {
    throw Error(fmt::format("{}: dates and times are not used in configs", node.where));
  }
  return node;
}

}  // namespace

Table parse_toml(std::string_view text, const std::string& source) {
  check_keys(text, source);
  try {
    return convert_table(toml::parse(text), source);
  } catch (const toml::parse_error& error) {
    throw Error(fmt::format("{}:{}:{}: not valid TOML: {}",
                            source,
                            error.source().begin.line,
                            error.source().begin.column,
                            error.description()));
  }
}

}  // namespace reynard::config
