// TOML text -> tree, with toml++: the only file that includes it.

#include "reynard/config/tree.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <sstream>

namespace reynard::config {

namespace {

std::string place(const std::string& source, const toml::source_region& region) {
  return fmt::format("{}:{}", source, region.begin.line);
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
