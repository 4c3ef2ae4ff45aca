// TOML text -> tree, with toml++: the only file that includes it.

#include "reynard/config/tree.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cctype>

namespace reynard::config {

namespace {

std::string place(const std::string& source, const toml::source_region& region) {
  return fmt::format("{}:{}", source, region.begin.line);
}

// How long the string is that begins here with this quote, up to the end of the text or, of one
// line, of the line where it is not closed.
size_t string_size(std::string_view text, std::string_view quote) {
  const bool escapes = quote[0] == '"', one_line = quote.size() == 1;
  for (size_t i = quote.size(); i < text.size(); ++i) {
    if (one_line && text[i] == '\n') return i;
    if (text.substr(i).starts_with(quote)) {
      i += quote.size();
      // Up to two more quotes belong to a string of several lines.
      for (int more = 0; !one_line && more < 2 && text.substr(i).starts_with(quote[0]); ++more) ++i;
      return i;
    }
    if (escapes && text[i] == '\\' && !(one_line && text.substr(i + 1).starts_with('\n'))) ++i;
  }
  return text.size();
}

bool is_of_bare_key(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
}

// A piece of a TOML file as far as keys are concerned.
struct Piece {
  enum class Kind { kPart, kDot, kSpace, kOther } kind;
  size_t size;
};

Piece piece_of(std::string_view text) {
  using Kind = Piece::Kind;
  for (const std::string_view quote : {R"(""")", "'''", "\"", "'"}) {
    if (!text.starts_with(quote)) continue;
    return {quote.size() == 1 ? Kind::kPart : Kind::kOther, string_size(text, quote)};
  }
  if (text[0] == '#') return {Kind::kOther, std::min(text.find('\n'), text.size())};
  if (text[0] == '.') return {Kind::kDot, 1};
  if (text[0] == ' ' || text[0] == '\t') return {Kind::kSpace, 1};
  const auto end = std::ranges::find_if_not(text, is_of_bare_key);
  if (end != text.begin()) return {Kind::kPart, static_cast<size_t>(end - text.begin())};
  return {Kind::kOther, 1};
}

// toml++ bounds how deep values lie in each other, but a key of n parts makes n tables without
// bound, and whoever walks through tables calls itself for each.
void check_keys(std::string_view text, const std::string& source) {
  int64_t line = 1;
  int parts = 0;
  bool behind_dot = false;
  while (!text.empty()) {
    const auto [kind, size] = piece_of(text);
    switch (kind) {
      case Piece::Kind::kPart:
        parts = behind_dot ? parts + 1 : 1;
        behind_dot = false;
        break;
      case Piece::Kind::kDot:
        behind_dot = parts > 0 && !behind_dot;
        break;
      case Piece::Kind::kSpace:
        break;
      case Piece::Kind::kOther:
        parts = 0;
        behind_dot = false;
    }
    if (parts > kMostKeyParts) {
      throw Error(fmt::format("{}:{}: a key of more than {} parts; expected [section.name]",
                              source,
                              line,
                              kMostKeyParts));
    }
    line += std::ranges::count(text.substr(0, size), '\n');
    text.remove_prefix(size);
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
