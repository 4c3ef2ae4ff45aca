#include "reynard/jinja/value.h"

#include "reynard/config/json_file.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace reynard::jinja {

void append_text(std::string& to, std::string_view text) {
  if (text.size() > kMaxText - to.size()) throw Error("the text is too long");
  to += text;
}

namespace {

// Values inside each other are freed and compared by recursion.
constexpr int32_t kMaxValueDepth = 50;

void write_json(const Value& value, const JsonOptions& options, int64_t level, std::string& out) {
  const int64_t indent = options.indent;
  const auto new_line = [&](int64_t depth) {
    if (indent >= 0) out += "\n" + std::string(static_cast<std::size_t>(indent * depth), ' ');
  };
  const auto separate = [&](bool first) {
    if (!first) out += indent >= 0 ? "," : ", ";
    new_line(level + 1);
  };
  if (const Value::List* list = value.list()) {
    out += "[";
    for (std::size_t i = 0; i < list->size(); ++i) {
      separate(i == 0);
      write_json((*list)[i], options, level + 1, out);
    }
    if (!list->empty()) new_line(level);
    out += "]";
  } else if (const Value::Map* map = value.space() ? nullptr : value.map()) {
    out += "{";
    for (std::size_t i = 0; i < map->size(); ++i) {
      separate(i == 0);
      write_json((*map)[i].first, options, level + 1, out);
      out += ": ";
      write_json((*map)[i].second, options, level + 1, out);
    }
    if (!map->empty()) new_line(level);
    out += "}";
  } else if (const std::string* text = value.text()) {
    const nlohmann::json json = *text;
    out += options.ensure_ascii ? config::ascii_json_text(json) : config::json_text(json);
  } else if (const bool* boolean = value.boolean()) {
    out += *boolean ? "true" : "false";
  } else if (value.is_none()) {
    out += "null";
  } else if (value.is_number()) {
    out += to_text(value);
  } else {
    throw Error(fmt::format("tojson: {} cannot be written", value.type_name()));
  }
}

}  // namespace

Value::Value(List value) {
  for (const Value& inner : value) hold(inner);
  data_ = std::make_shared<const List>(std::move(value));
}

Value::Value(Map value) {
  for (const auto& [key, inner] : value) hold(inner);
  data_ = std::make_shared<const Map>(std::move(value));
}

void Value::hold(const Value& inner) {
  depth_ = std::max(depth_, inner.depth_ + 1);
  holds_namespace_ |= inner.holds_namespace_;
  if (depth_ > kMaxValueDepth) throw Error("lists are too deep inside each other");
}

const Value::List* Value::list() const {
  const auto* list = std::get_if<std::shared_ptr<const List>>(&data_);
  return list != nullptr ? list->get() : nullptr;
}

const Value::Map* Value::map() const {
  if (const auto* map = std::get_if<std::shared_ptr<const Map>>(&data_)) return map->get();
  const auto* space = std::get_if<std::shared_ptr<Namespace>>(&data_);
  return space != nullptr ? &(*space)->fields : nullptr;
}

std::shared_ptr<Value::Namespace> Value::space() const {
  const auto* space = std::get_if<std::shared_ptr<Namespace>>(&data_);
  return space != nullptr ? *space : nullptr;
}

double Value::as_real() const {
  if (boolean()) return *boolean() ? 1 : 0;
  if (integer()) return static_cast<double>(*integer());
  return real() ? *real() : std::nan("");
}

bool Value::is_true() const {
  if (is_number()) return as_real() != 0;
  if (text()) return !text()->empty();
  if (list()) return !list()->empty();
  if (space()) return true;
  if (map()) return !map()->empty();
  return function() != nullptr;
}

std::string_view Value::type_name() const {
  constexpr std::string_view kNames[] = {"undefined",
                                         "none",
                                         "a boolean",
                                         "an integer",
                                         "a number",
                                         "a string",
                                         "a list",
                                         "a map",
                                         "a namespace",
                                         "a function"};
  return kNames[data_.index()];
}

bool equal(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return *a.integer() == *b.integer();
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.text() && b.text()) return *a.text() == *b.text();
  if (a.list() && b.list()) {
    return std::ranges::equal(
        *a.list(), *b.list(), [](const Value& x, const Value& y) { return equal(x, y); });
  }
  if (a.space() || b.space()) return a.space() == b.space();
  if (a.map() && b.map()) {
    return a.map()->size() == b.map()->size() && std::ranges::all_of(*a.map(), [&](const auto& e) {
             const Value other = find(*b.map(), e.first);
             return !other.is_undefined() && equal(e.second, other);
           });
  }
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

std::string to_text(const Value& value) {
  if (value.text()) return *value.text();
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.boolean()) return *value.boolean() ? "True" : "False";
  if (value.integer()) return fmt::format("{}", *value.integer());
  if (value.real()) {
    const std::string digits = fmt::format("{}", *value.real());
    return digits.find_first_of(".en") == std::string::npos ? digits + ".0" : digits;
  }
  throw Error(fmt::format("{} cannot be written as text", value.type_name()));
}

std::string to_json(const Value& value, const JsonOptions& options) {
  std::string out;
  write_json(value, options, 0, out);
  return out;
}

Value find(const Value::Map& map, std::string_view key) {
  const auto entry = std::ranges::find(map, key, &Value::Map::value_type::first);
  return entry == map.end() ? Value() : entry->second;
}

void put(Value::Map& map, std::string key, Value value) {
  const auto entry = std::ranges::find(map, key, &Value::Map::value_type::first);
  if (entry != map.end()) {
    entry->second = std::move(value);
  } else {
    map.emplace_back(std::move(key), std::move(value));
  }
}

std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> out;
  for (const char byte : text) {
    const bool continues = (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U;
    if (continues && !out.empty() && out.back().size() < 4 && (out.back()[0] & 0x80) != 0) {
      out.back() += byte;
    } else {
      out.emplace_back(1, byte);
    }
  }
  return out;
}

}  // namespace reynard::jinja
