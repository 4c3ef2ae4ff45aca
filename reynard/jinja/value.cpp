#include "reynard/jinja/value.h"

#include "reynard/config/json_file.h"
#include "reynard/jinja/letters.h"
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
// Lists that hold one list many times may weigh more than any number says.
constexpr int64_t kMostWeight = int64_t{1} << 60U;

void write_json(const Value& value, const JsonOptions& options, int64_t level, std::string& out) {
  const int64_t indent = options.indent;
  const auto new_line = [&](int64_t depth) {
    if (indent < 0) return;
    append_text(out, "\n" + std::string(static_cast<std::size_t>(indent * depth), ' '));
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
    append_text(out,
                options.ensure_ascii ? config::ascii_json_text(json) : config::json_text(json));
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

Value::Value(std::string value) : weight_(std::ssize(value)) {
  data_ = std::make_shared<const std::string>(std::move(value));
}

Value::Value(List value) {
  for (const Value& inner : value) hold(inner, 0);
  data_ = std::make_shared<const List>(std::move(value));
}

Value::Value(Map value) {
  for (const auto& [key, inner] : value) hold(inner, key.size());
  data_ = std::make_shared<const Map>(std::move(value));
}

void Value::hold(const Value& inner, std::size_t key_bytes) {
  const int64_t item = kItemBytes + static_cast<int64_t>(key_bytes) + inner.weight_;
  weight_ = std::min(weight_ + item, kMostWeight);
  depth_ = std::max(depth_, inner.depth_ + 1);
  holds_namespace_ |= inner.holds_namespace_;
  if (depth_ > kMaxValueDepth) throw Error("lists are too deep inside each other");
}

const std::string* Value::text() const {
  const auto* text = std::get_if<std::shared_ptr<const std::string>>(&data_);
  return text != nullptr ? text->get() : nullptr;
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

int64_t Value::weight() const {
  const auto own = space();
  return own ? std::ssize(own->fields) * kItemBytes : weight_;
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

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    out.push_back(first_character(text));
    text.remove_prefix(out.back().size());
  }
  return out;
}

int64_t num_characters(std::string_view text) {
  int64_t count = 0;
  for (; !text.empty(); text.remove_prefix(first_character(text).size())) ++count;
  return count;
}

}  // namespace reynard::jinja
