#include "reynard/config/tree.h"

#include "reynard/config/fields.h"
#include "reynard/config/text_file.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace reynard::config {

namespace {

constexpr std::uintmax_t kMaxConfigBytes = 16 << 20;

std::string quoted_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

bool is_bare_key(std::string_view name) {
  const auto bare = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), bare);
}

std::string key_text(std::string_view name) {
  return is_bare_key(name) ? std::string(name) : quoted_text(name);
}

// The shortest text that reads back as the same double, recognisable as a float.
std::string double_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool is_table_list(const Node& node) {
  const auto* list = std::get_if<std::vector<Node>>(&node.value);
  return list && !list->empty() && std::all_of(list->begin(), list->end(), [](const Node& item) {
           return std::holds_alternative<Table>(item.value);
         });
}

// Values first: after a [section] line they would belong to that section.
void print_section(const Table& table, const std::string& path, std::string& out) {
  for (const auto& [name, node] : table.entries) {
    if (!std::holds_alternative<Table>(node.value) && !is_table_list(node)) {
      out += fmt::format("{} = {}\n", key_text(name), value_text(node));
    }
  }
  for (const auto& [name, node] : table.entries) {
    const std::string inner = path.empty() ? key_text(name) : path + "." + key_text(name);
    const std::string gap = out.empty() ? "" : "\n";
    if (const auto* section = std::get_if<Table>(&node.value)) {
      out += fmt::format("{}[{}]\n", gap, inner);
      print_section(*section, inner, out);
    } else if (is_table_list(node)) {
      for (const Node& item : std::get<std::vector<Node>>(node.value)) {
        out += fmt::format("{}[[{}]]\n", out.empty() ? "" : "\n", inner);
        print_section(std::get<Table>(item.value), inner, out);
      }
    }
  }
}

}  // namespace

Table::Table() = default;
Table::Table(const Table&) = default;
Table::Table(Table&&) noexcept = default;
Table& Table::operator=(const Table&) = default;
Table& Table::operator=(Table&&) noexcept = default;
Table::~Table() = default;

Node* Table::find(std::string_view name) {
  const auto entry =
      std::find_if(entries.begin(), entries.end(), [&](const auto& e) { return e.first == name; });
  return entry == entries.end() ? nullptr : &entry->second;
}

const Node* Table::find(std::string_view name) const {
  return const_cast<Table*>(this)->find(name);
}

Node& Table::add(std::string name, Node node) {
  return entries.emplace_back(std::move(name), std::move(node)).second;
}

std::string read_config_file(const std::filesystem::path& file) {
  return read_text_file(file, kMaxConfigBytes);
}

namespace {

// given: "--section.key=value", as messages show it; deeper: one whose key goes beyond that.
[[noreturn]] void reject_value_and_section(const std::string& key,
                                           const std::string& given,
                                           const std::string& deeper) {
  throw Error(fmt::format("{} is given as a value, {}, and as a section, {}; give one of them",
                          printable(key),
                          printable(given),
                          printable(deeper)));
}

// An override whose key lies in this table of overrides.
std::string first_override(const Table& table) {
  const Node& node = table.entries.front().second;
  if (const auto* deeper = std::get_if<Table>(&node.value)) return first_override(*deeper);
  return fmt::format("{}={}", node.where, value_text(node));
}

}  // namespace

void apply_override(Table& root, std::string_view argument) {
  const std::size_t equals = argument.find('=');
  if (!argument.starts_with("--") || equals == std::string_view::npos || equals == 2) {
    throw Error(fmt::format(
        "{}: expected --section.key=value{}",
        argument.empty() ? "\"\"" : printable(argument),
        argument.starts_with("-") || argument.empty() || equals != std::string_view::npos
            ? ""
            : "; an option with several values is given once for each of them"));
  }
  const std::string path(argument.substr(2, equals - 2));
  const std::string where = fmt::format("--{}", path);
  if (std::ranges::count(path, '.') >= kMostKeyParts) {
    throw Error(fmt::format("--{}...: a key of more than {} parts; expected --section.key=value",
                            printable(path.substr(0, 40)),
                            kMostKeyParts));
  }
  Table* table = &root;
  std::size_t begin = 0;
  while (true) {
    const std::size_t dot = path.find('.', begin);
    const std::string name = path.substr(begin, dot == std::string::npos ? dot : dot - begin);
    if (name.empty())
      throw Error(fmt::format("{}: expected --section.key=value", printable(argument)));
    Node* node = table->find(name);
    if (!node) node = &table->add(name, {});
    const std::string key = path.substr(0, dot);
    if (const auto* given = std::get_if<RawText>(&node->value)) {
      if (dot != std::string::npos) {
        reject_value_and_section(
            key, fmt::format("{}={}", node->where, given->text), std::string(argument));
      }
      throw Error(fmt::format("{} is given twice, as {} and as {}; give it once",
                              printable(path),
                              printable(given->text),
                              printable(argument.substr(equals + 1))));
    }
    if (dot == std::string::npos) {
      const auto* section = std::get_if<Table>(&node->value);
      if (section && node->where.starts_with("--")) {
        reject_value_and_section(key, std::string(argument), first_override(*section));
      }
      node->value = RawText{std::string(argument.substr(equals + 1))};
      node->where = where;
      return;
    }
    if (!std::holds_alternative<Table>(node->value)) {
      node->value = Table{};
      node->where = fmt::format("--{}", key);
    }
    table = &std::get<Table>(node->value);
    begin = dot + 1;
  }
}

std::string value_text(const Node& node) {
  struct Print {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool value) const { return value ? "true" : "false"; }
    std::string operator()(int64_t value) const { return std::to_string(value); }
    std::string operator()(double value) const { return double_text(value); }
    std::string operator()(const std::string& value) const { return quoted_text(value); }
    std::string operator()(const RawText& value) const { return value.text; }
    std::string operator()(const std::vector<Node>& value) const {
      std::vector<std::string> items;
      for (const Node& item : value) items.push_back(value_text(item));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
    std::string operator()(const Table& value) const {
      std::vector<std::string> items;
      for (const auto& [name, item] : value.entries) {
        items.push_back(fmt::format("{} = {}", key_text(name), value_text(item)));
      }
      return items.empty() ? "{}" : fmt::format("{{ {} }}", fmt::join(items, ", "));
    }
  };
  return std::visit(Print{}, node.value);
}

std::string override_text(const Node& node) {
  const auto* text = std::get_if<std::string>(&node.value);
  return text ? *text : value_text(node);
}

std::string_view kind_text(const Node& node) {
  static constexpr std::string_view kNames[] = {
      "null", "a bool", "an integer", "a number", "a string", "text", "a list", "a section"};
  static_assert(std::size(kNames) == std::variant_size_v<decltype(Node::value)>);
  return kNames[node.value.index()];
}

std::string print_toml(const Table& root) {
  std::string out;
  print_section(root, "", out);
  return out;
}

}  // namespace reynard::config
