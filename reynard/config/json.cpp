// JSON text <-> tree. JSON has no infinities: they are written as the strings "inf", "-inf", "nan",
// which number fields accept.

#include "reynard/config/json_file.h"
#include "reynard/config/tree.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace reynard::config {

namespace {

using Json = nlohmann::ordered_json;

Node convert(const Json& from, const std::string& source) {
  Node node;
  node.where = source;
  switch (from.type()) {
    case Json::value_t::boolean:
      node.value = from.get<bool>();
      break;
    case Json::value_t::number_unsigned:
      if (from.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        node.value = from.get<double>();
      } else {
        node.value = from.get<int64_t>();
      }
      break;
    case Json::value_t::number_integer:
      node.value = from.get<int64_t>();
      break;
    case Json::value_t::number_float:
      node.value = from.get<double>();
      break;
    case Json::value_t::string:
      node.value = from.get<std::string>();
      break;
    case Json::value_t::array: {
      std::vector<Node> items;
      for (const Json& item : from) items.push_back(convert(item, source));
      node.value = std::move(items);
      break;
    }
    case Json::value_t::object: {
      Table table;
      for (const auto& [name, item] : from.items()) table.add(name, convert(item, source));
      node.value = std::move(table);
      break;
    }
    default:
      break;  // null
  }
  return node;
}

Json convert(const Node& node) {
  if (const auto* table = std::get_if<Table>(&node.value)) {
    Json object = Json::object();
    for (const auto& [name, item] : table->entries) object[name] = convert(item);
    return object;
  }
  if (const auto* list = std::get_if<std::vector<Node>>(&node.value)) {
    Json array = Json::array();
    for (const Node& item : *list) array.push_back(convert(item));
    return array;
  }
  if (const auto* flag = std::get_if<bool>(&node.value)) return *flag;
  if (const auto* integer = std::get_if<int64_t>(&node.value)) return *integer;
  if (const auto* text = std::get_if<std::string>(&node.value)) return *text;
  if (const auto* text = std::get_if<RawText>(&node.value)) return text->text;
  if (const auto* number = std::get_if<double>(&node.value)) {
    return std::isfinite(*number) ? Json(*number) : Json(value_text(node));
  }
  return nullptr;
}

}  // namespace

Table parse_json(std::string_view text, const std::string& source) {
  constexpr int kMaxDepth = 256;
  if (is_nested_deeper(text, kMaxDepth)) {
    throw Error(fmt::format("{}: nested more than {} deep", source, kMaxDepth));
  }
  try {
    const Json json = Json::parse(text);
    if (!json.is_object()) throw Error(fmt::format("{}: expected a JSON object", source));
    return std::get<Table>(convert(json, source).value);
  } catch (const Json::parse_error& error) {
    const std::size_t read = std::min(error.byte, text.size());  // bytes, the bad one included
    const auto line = 1 + std::count(text.begin(), text.begin() + (read ? read - 1 : 0), '\n');
    throw Error(fmt::format("{}:{}: not valid JSON (byte {})", source, line, error.byte));
  } catch (const Json::exception&) {  // a number out of range
    throw Error(fmt::format("{}: not valid JSON: {}", source, json_mistake(text, kMaxDepth)));
  }
}

std::string print_json(const Table& root) {
  // Text that is not UTF-8 (a file name) cannot be written as JSON; replace rather than fail.
  return json_text(convert(Node{root, {}}), 2) + "\n";
}

}  // namespace reynard::config
