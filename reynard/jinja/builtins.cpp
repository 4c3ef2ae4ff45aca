#include "reynard/jinja/builtins.h"

#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>

namespace reynard::jinja {

namespace {

constexpr std::string_view kSpace = " \t\n\r\v\f";

constexpr std::array<std::string_view, 26> kFilters = {
    "trim",    "length",     "count",      "tojson",   "upper", "lower",   "capitalize",
    "default", "d",          "list",       "first",    "last",  "join",    "string",
    "int",     "replace",    "safe",       "items",    "map",   "reverse", "select",
    "reject",  "selectattr", "rejectattr", "dictsort", "unique"};
constexpr std::array<std::string_view, 20> kTests = {
    "defined", "undefined", "none",  "string",  "mapping", "iterable", "sequence",
    "number",  "integer",   "float", "boolean", "true",    "false",    "callable",
    "eq",      "equalto",   "ne",    "in",      "odd",     "even"};
constexpr std::array<std::string_view, 15> kMethods = {"strip",
                                                       "lstrip",
                                                       "rstrip",
                                                       "split",
                                                       "startswith",
                                                       "endswith",
                                                       "upper",
                                                       "lower",
                                                       "title",
                                                       "capitalize",
                                                       "replace",
                                                       "join",
                                                       "items",
                                                       "keys",
                                                       "get"};

// By value: most arguments are temporary.
std::string text_of(const Value& value, std::string_view what) {
  if (value.text()) return *value.text();
  throw Error(fmt::format("{} is {}; expected a string", what, value.type_name()));
}

int64_t integer_of(const Value& value, std::string_view what) {
  if (value.integer()) return *value.integer();
  throw Error(fmt::format("{} is {}; expected an integer", what, value.type_name()));
}

// ASCII alone: names and roles; other letters stay.
std::string mapped(std::string text, int (*change)(int)) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x80) c = static_cast<char>(change(c));
  }
  return text;
}

std::string capitalized(const std::string& text, bool every_word) {
  std::string out = mapped(text, std::tolower);
  bool begins = true;
  for (char& c : out) {
    const bool is_letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (begins && is_letter) c = static_cast<char>(std::toupper(c));
    begins = every_word && !is_letter;
  }
  return out;
}

enum class Ends { kBoth, kLeft, kRight };

std::string stripped(const std::string& text, const Value& characters, Ends ends) {
  const std::string_view unwanted =
      characters.text() ? std::string_view(*characters.text()) : kSpace;
  std::size_t begin = 0, end = text.size();
  const auto goes = [&](char c) { return unwanted.find(c) != std::string_view::npos; };
  while (ends != Ends::kRight && begin < end && goes(text[begin])) ++begin;
  while (ends != Ends::kLeft && end > begin && goes(text[end - 1])) --end;
  return text.substr(begin, end - begin);
}

Value::List split(const std::string& text, const Value& separator, const Value& most) {
  const int64_t limit = most.integer() && *most.integer() >= 0
                            ? *most.integer()
                            : std::numeric_limits<int64_t>::max();
  Value::List parts;
  if (!separator.text()) {  // at runs of white space
    std::size_t at = text.find_first_not_of(kSpace);
    while (at != std::string::npos) {
      const bool is_rest = std::ssize(parts) >= limit;
      const std::size_t end = is_rest ? std::string::npos : text.find_first_of(kSpace, at);
      parts.emplace_back(text.substr(at, end - at));
      at = end == std::string::npos ? end : text.find_first_not_of(kSpace, end);
    }
    return parts;
  }
  if (separator.text()->empty()) throw Error("split: the separator is empty");
  std::size_t begin = 0;
  for (std::size_t at = 0; std::ssize(parts) < limit &&
                           (at = text.find(*separator.text(), begin)) != std::string::npos;) {
    parts.emplace_back(text.substr(begin, at - begin));
    begin = at + separator.text()->size();
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) throw Error("replace: the text to be replaced is empty");
  std::string out;
  std::size_t begin = 0;
  for (std::size_t at = 0; (at = text.find(from, begin)) != std::string::npos;
       begin = at + from.size()) {
    append_text(out, std::string_view(text).substr(begin, at - begin));
    append_text(out, to);
  }
  append_text(out, std::string_view(text).substr(begin));
  return out;
}

std::string joined(const Value& list, const std::string& separator) {
  std::string out;
  bool first = true;
  for (const Value& item : items_of(list)) {
    if (!first) append_text(out, separator);
    first = false;
    append_text(out, to_text(item));
  }
  return out;
}

int64_t length_of(const Value& value) {
  if (value.text()) return std::ssize(characters(*value.text()));
  if (value.list()) return std::ssize(*value.list());
  if (value.map()) return std::ssize(*value.map());
  if (value.is_undefined()) return 0;
  throw Error(fmt::format("length: {} has none", value.type_name()));
}

Value::List map_items(const Value& value) {
  if (!value.map()) throw Error(fmt::format("items: {} has none", value.type_name()));
  Value::List items;
  for (const auto& [key, item] : *value.map()) items.emplace_back(Value::List{key, item});
  return items;
}

Value::List keys_of(const Value& value) {
  if (!value.map()) throw Error(fmt::format("keys: {} has none", value.type_name()));
  Value::List keys;
  for (const auto& [key, item] : *value.map()) keys.emplace_back(key);
  return keys;
}

Value to_integer(const Value& value) {
  if (value.integer()) return value;
  if (value.is_number()) {
    if (!(std::abs(value.as_real()) < 9e18)) throw Error("int: the number is too large");
    return static_cast<int64_t>(value.as_real());
  }
  int64_t number = 0;
  if (value.text()) {
    const std::string& text = *value.text();
    std::from_chars(text.data(), text.data() + text.size(), number);
  }
  return number;
}

Value attribute_of(const Value& item, const Value& name) {
  return item.map() && name.text() ? find(*item.map(), *name.text()) : Value();
}

// map(attribute=...) and map('filter').
Value::List mapped_items(const Value& input, const Arguments& arguments) {
  const Value attribute = arguments.at(99, "attribute");
  Value::List out;
  if (!input.is_true()) return out;
  for (const Value& item : items_of(input)) {
    if (!attribute.is_undefined()) {
      out.push_back(attribute_of(item, attribute));
      continue;
    }
    const std::string filter = text_of(arguments.at(0), "map");
    if (!is_filter(filter)) throw Error(fmt::format("the filter {:?} is not supported", filter));
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin());
    out.push_back(apply_filter(filter, item, rest));
  }
  return out;
}

// select, reject, selectattr and rejectattr: by a test, or by what is true.
Value::List selected(std::string_view name, const Value& input, const Arguments& arguments) {
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  if (!input.is_true()) return {};
  Value::List out;
  for (const Value& item : items_of(input)) {
    const Value asked = by_attribute ? attribute_of(item, arguments.at(0)) : item;
    Arguments rest = arguments;
    const std::size_t test_at = by_attribute ? 1 : 0;
    bool holds = asked.is_true();
    if (arguments.positional.size() > test_at) {
      const std::string test = text_of(arguments.at(test_at), name);
      if (!is_test(test)) throw Error(fmt::format("the test {:?} is not supported", test));
      rest.positional.erase(rest.positional.begin(),
                            rest.positional.begin() + static_cast<std::ptrdiff_t>(test_at + 1));
      holds = apply_test(test, asked, rest);
    }
    if (holds == wanted) out.push_back(item);
  }
  return out;
}

Value::List unique_items(const Value& input) {
  constexpr std::ptrdiff_t kMost = 4096;  // each is compared with all before it
  Value::List out;
  for (const Value& item : items_of(input)) {
    if (std::ranges::none_of(out, [&](const Value& seen) { return equal(seen, item); })) {
      if (std::ssize(out) == kMost) {
        throw Error(fmt::format("unique: there are more than {} different items", kMost));
      }
      out.push_back(item);
    }
  }
  return out;
}

Value apply_list_filter(std::string_view name, const Value& input, const Arguments& arguments) {
  if (name == "map") return mapped_items(input, arguments);
  if (name == "items") return map_items(input);
  if (name == "unique") return unique_items(input);
  if (name == "dictsort") {
    Value::List items = map_items(input);
    std::ranges::sort(items, {}, [](const Value& item) { return *(*item.list())[0].text(); });
    return items;
  }
  if (name.starts_with("select") || name.starts_with("reject")) {
    return selected(name, input, arguments);
  }
  Value::List items = items_of(input);
  if (name == "list") return items;
  if (name == "reverse") {
    std::ranges::reverse(items);
    return items;
  }
  if (items.empty()) return Value();
  return name == "first" ? items.front() : items.back();
}

}  // namespace

Value Arguments::at(std::size_t index, std::string_view name) const {
  if (index < positional.size()) return positional[index];
  return name.empty() ? Value() : find(named, name);
}

bool is_filter(std::string_view name) {
  return std::ranges::find(kFilters, name) != kFilters.end();
}
bool is_test(std::string_view name) {
  return std::ranges::find(kTests, name) != kTests.end();
}
bool is_method(std::string_view name) {
  return std::ranges::find(kMethods, name) != kMethods.end();
}

bool contains(const Value& b, const Value& a) {
  if (b.text())
    return b.text()->find(text_of(a, "what is looked for in a string")) != std::string::npos;
  if (b.map()) return a.text() && !find(*b.map(), *a.text()).is_undefined();
  const Value::List items = items_of(b);
  return std::ranges::any_of(items, [&](const Value& item) { return equal(item, a); });
}

Value::List items_of(const Value& value) {
  if (value.list()) return *value.list();
  if (value.is_undefined()) return {};
  if (value.map()) return keys_of(value);
  if (!value.text()) throw Error(fmt::format("{} has no items", value.type_name()));
  Value::List items;
  for (std::string& character : characters(*value.text())) items.emplace_back(std::move(character));
  return items;
}

Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments) {
  if (name == "length" || name == "count") return length_of(input);
  if (name == "tojson") {
    const Value indent = arguments.at(0, "indent");
    return to_json(input, indent.integer() ? std::clamp<int64_t>(*indent.integer(), 0, 16) : -1);
  }
  if (name == "default" || name == "d") {
    const bool also_false = arguments.at(1, "boolean").is_true();
    const bool is_missing = input.is_undefined() || (also_false && !input.is_true());
    return is_missing ? arguments.at(0, "default_value") : input;
  }
  if (name == "safe") return input;
  if (name == "string") return to_text(input);
  if (name == "int") return to_integer(input);
  if (name == "join") {
    const Value separator = arguments.at(0, "d");
    return joined(input, separator.is_undefined() ? "" : to_text(separator));
  }
  if (name == "trim") return stripped(to_text(input), arguments.at(0, "chars"), Ends::kBoth);
  if (name == "upper") return mapped(to_text(input), std::toupper);
  if (name == "lower") return mapped(to_text(input), std::tolower);
  if (name == "capitalize") return capitalized(to_text(input), /*every_word=*/false);
  if (name == "replace") {
    return replaced(
        to_text(input), text_of(arguments.at(0), "replace"), text_of(arguments.at(1), "replace"));
  }
  return apply_list_filter(name, input, arguments);
}

bool apply_test(std::string_view name, const Value& input, const Arguments& arguments) {
  if (name == "defined") return !input.is_undefined();
  if (name == "undefined") return input.is_undefined();
  if (name == "none") return input.is_none();
  if (name == "string") return input.text() != nullptr;
  if (name == "mapping") return input.map() != nullptr;
  if (name == "iterable" || name == "sequence") {
    return input.text() || input.list() || input.map() ||
           (name == "iterable" && input.is_undefined());
  }
  if (name == "number") return input.is_number();
  if (name == "integer") return input.integer() != nullptr;
  if (name == "float") return input.real() != nullptr;
  if (name == "boolean") return input.boolean() != nullptr;
  if (name == "true") return input.boolean() && *input.boolean();
  if (name == "false") return input.boolean() && !*input.boolean();
  if (name == "callable") return input.function() != nullptr;
  if (name == "in") return contains(arguments.at(0), input);
  if (name == "ne") return !equal(input, arguments.at(0));
  if (name == "odd") return integer_of(input, name) % 2 != 0;
  if (name == "even") return integer_of(input, name) % 2 == 0;
  return equal(input, arguments.at(0));  // eq, equalto
}

Value call_method(std::string_view name, const Value& object, const Arguments& arguments) {
  if (name == "items") return map_items(object);
  if (name == "keys") return keys_of(object);
  if (name == "get") {
    if (!object.map()) throw Error(fmt::format("get: {} has no keys", object.type_name()));
    const Value found = find(*object.map(), text_of(arguments.at(0), "get"));
    if (!found.is_undefined()) return found;
    const Value fallback = arguments.at(1);
    return fallback.is_undefined() ? Value(Value::None()) : fallback;
  }
  const std::string text = text_of(object, fmt::format("what {}() is called of", name));
  if (name == "strip") return stripped(text, arguments.at(0), Ends::kBoth);
  if (name == "lstrip") return stripped(text, arguments.at(0), Ends::kLeft);
  if (name == "rstrip") return stripped(text, arguments.at(0), Ends::kRight);
  if (name == "split") return split(text, arguments.at(0, "sep"), arguments.at(1, "maxsplit"));
  if (name == "startswith") return text.starts_with(text_of(arguments.at(0), name));
  if (name == "endswith") return text.ends_with(text_of(arguments.at(0), name));
  if (name == "title") return capitalized(text, /*every_word=*/true);
  if (name == "join") return joined(arguments.at(0), text);
  return apply_filter(name, object, arguments);  // upper, lower, capitalize, replace
}

}  // namespace reynard::jinja
