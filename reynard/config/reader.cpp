#include "reynard/config/reader.h"

#include "reynard/config/nearest_key.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

namespace reynard::config {

namespace {

bool satisfies(const Rule& rule, double value) {
  if (rule.text.empty()) return true;
  return value <= rule.max && (rule.min_open ? value > rule.min : value >= rule.min);
}

bool check_rule(const Node& node, const ReadPlace& place, double value) {
  if (satisfies(place.rule, value)) return true;
  // Infinity is > 0, and no number all the same.
  const bool is_finite = std::isfinite(value) || place.rule.text == finite.text;
  place.problems.add(node.where,
                     place.path,
                     fmt::format("= {}; must be {}{}",
                                 value_text(node),
                                 is_finite ? "" : "a finite number, ",
                                 place.rule.text));
  return false;
}

// A whole text as a number; nullopt when anything is left over.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return value;
}

// TOML's digit groups: 1_000_000.
std::string without_groups(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool group = text[i] == '_' && i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) &&
                       is_digit(text[i + 1]);
    if (!group) out += text[i];
  }
  return out;
}

// What files hold was verified by their parsers; a command line may hold any bytes, and TOML
// written from it could not be read back.
bool is_utf8(std::string_view text) {
  return nlohmann::json::accept(value_text({std::string(text), {}}));
}

}  // namespace

bool is_absent(const Node& node) {
  const auto* raw = std::get_if<RawText>(&node.value);
  return std::holds_alternative<std::monostate>(node.value) || (raw && raw->text.empty());
}

void add_wrong_type(const Node& node, const ReadPlace& place, std::string_view expected) {
  const bool shown = !std::holds_alternative<Table>(node.value);
  const std::string value =
      shown ? fmt::format("= {}", value_text(node)) : fmt::format("is {}", kind_text(node));
  place.problems.add(node.where, place.path, fmt::format("{}; must be {}", value, expected));
}

namespace {

// approximate: the value as a number, where it is one.
void add_no_integer(const Node& node, const ReadPlace& place, std::optional<double> approximate) {
  const bool is_beyond = approximate && std::isfinite(*approximate) &&
                         (*approximate >= 0x1p63 || *approximate < -0x1p63);
  if (is_beyond && !check_rule(node, place, *approximate)) return;
  using Limits = std::numeric_limits<int64_t>;
  add_wrong_type(node,
                 place,
                 is_beyond
                     ? fmt::format("an integer between {} and {}", Limits::min(), Limits::max())
                     : "an integer");
}

}  // namespace

bool read_value(const Node& node, const ReadPlace& place, bool& value) {
  if (const auto* flag = std::get_if<bool>(&node.value)) {
    value = *flag;
    return true;
  }
  const auto* raw = std::get_if<RawText>(&node.value);
  if (raw && (raw->text == "true" || raw->text == "false")) {
    value = raw->text == "true";
    return true;
  }
  add_wrong_type(node, place, "true or false");
  return false;
}

bool read_value(const Node& node, const ReadPlace& place, int64_t& value) {
  std::optional<int64_t> parsed;
  std::optional<double> approximate;  // of what is no int64_t
  if (const auto* integer = std::get_if<int64_t>(&node.value)) parsed = *integer;
  if (const auto* number = std::get_if<double>(&node.value)) approximate = *number;
  if (const auto* raw = std::get_if<RawText>(&node.value)) {
    const std::string text = without_groups(raw->text);
    parsed = parse_number<int64_t>(text);
    approximate = parse_number<double>(text);
  }
  if (!parsed) {
    add_no_integer(node, place, approximate);
    return false;
  }
  if (!check_rule(node, place, static_cast<double>(*parsed))) return false;
  value = *parsed;
  return true;
}

bool read_value(const Node& node, const ReadPlace& place, double& value) {
  std::optional<double> parsed;
  if (const auto* number = std::get_if<double>(&node.value)) parsed = *number;
  if (const auto* integer = std::get_if<int64_t>(&node.value)) {
    parsed = static_cast<double>(*integer);
  }
  if (const auto* raw = std::get_if<RawText>(&node.value)) {
    parsed = parse_number<double>(without_groups(raw->text));
  }
  // JSON has no other way to say these.
  if (const auto* text = std::get_if<std::string>(&node.value)) {
    if (*text == "inf" || *text == "-inf" || *text == "nan") parsed = parse_number<double>(*text);
  }
  if (!parsed) {
    add_wrong_type(node, place, "a number");
    return false;
  }
  if (!check_rule(node, place, *parsed)) return false;
  value = *parsed;
  return true;
}

bool read_value(const Node& node, const ReadPlace& place, std::string& value) {
  if (const auto* text = std::get_if<std::string>(&node.value)) {
    value = *text;
    return true;
  }
  if (const auto* raw = std::get_if<RawText>(&node.value)) {
    if (!is_utf8(raw->text)) {
      add_wrong_type(node, place, "UTF-8 text");
      return false;
    }
    value = raw->text;
    return true;
  }
  add_wrong_type(node, place, "a string");
  return false;
}

int64_t read_name(const Node& node,
                  const ReadPlace& place,
                  const std::vector<std::string_view>& names) {
  std::optional<std::string> text;
  if (const auto* string = std::get_if<std::string>(&node.value)) text = *string;
  if (const auto* raw = std::get_if<RawText>(&node.value)) text = raw->text;
  if (text) {
    const auto name = std::find(names.begin(), names.end(), *text);
    if (name != names.end()) return name - names.begin();
  }
  add_wrong_type(node, place, fmt::format("one of {}", fmt::join(names, ", ")));
  return -1;
}

std::optional<std::vector<Node>> read_list(const Node& node, const ReadPlace& place) {
  if (const auto* list = std::get_if<std::vector<Node>>(&node.value)) return *list;
  const auto* raw = std::get_if<RawText>(&node.value);
  if (!raw) {
    add_wrong_type(node, place, "a list");
    return {};
  }
  if (raw->text.starts_with('[')) {
    try {
      Table parsed = parse_toml("list = " + raw->text, node.where);
      Node* list = parsed.find("list");
      if (parsed.entries.size() == 1 && std::holds_alternative<std::vector<Node>>(list->value)) {
        auto items = std::get<std::vector<Node>>(std::move(list->value));
        for (Node& item : items) item.where = node.where;
        return items;
      }
    } catch (const Error&) {
      // Names without quotes ([none, full]) are no TOML: they are split at commas below.
    }
  }
  std::string_view text = raw->text;
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<Node> items;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    items.push_back({RawText{std::string(item)}, node.where});
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
  }
  return items;
}

const Table* read_table(const Node& node, const ReadPlace& place) {
  const auto* table = std::get_if<Table>(&node.value);
  if (!table) add_wrong_type(node, place, "a section");
  return table;
}

namespace {

// An unknown section: of a file one mistake, on the command line each key that names it.
void note_unknown(const Node& node, const std::string& path, std::vector<UnknownKey>& unknown) {
  const auto* table = std::get_if<Table>(&node.value);
  if (table == nullptr || !node.where.starts_with("--")) {
    unknown.push_back({path, node.where, table != nullptr});
    return;
  }
  for (const auto& [name, inner] : table->entries) note_unknown(inner, key(path, name), unknown);
}

// "model.attention.num_heads" lies in "model" and in "model.attention".
std::vector<std::string> sections_of(const std::vector<std::string>& keys) {
  std::vector<std::string> sections;
  for (const std::string& key : keys) {
    for (size_t at = key.find('.'); at != std::string::npos; at = key.find('.', at + 1)) {
      sections.push_back(key.substr(0, at));
    }
  }
  return sections;
}

}  // namespace

void Reader::note_unknown_keys() {
  for (const auto& [name, node] : table_.entries) {
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
      note_unknown(node, key(place_.path, name), place_.unknown);
    }
  }
}

void add_unknown_keys(const std::vector<UnknownKey>& unknown,
                      const std::vector<std::string>& known,
                      Problems& problems) {
  const std::vector<std::string> sections = sections_of(known);
  for (const UnknownKey& key : unknown) {
    const std::string near = nearest_key(key.path, key.is_section ? sections : known);
    problems.add(key.where,
                 key.path,
                 fmt::format("is not a known {}{}",
                             key.is_section ? "section" : "key",
                             near.empty() ? "" : fmt::format("; did you mean {}?", near)));
  }
}

}  // namespace reynard::config
