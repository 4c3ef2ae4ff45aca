#include "reynard/jinja/builtins.h"

#include "reynard/jinja/letters.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <system_error>
#include <unordered_set>

namespace reynard::jinja {

namespace {

// A filter and what it may be given, in Jinja's order; tojson's are those of Transformers.
struct Filter {
  std::string_view name;
  std::array<std::string_view, 2> parameters = {};
  bool passes_on = false;  // to a filter or a test that it names
};
constexpr std::array kFilters = {Filter{"trim", {"chars"}},
                                 Filter{"length"},
                                 Filter{"count"},
                                 Filter{"tojson", {"ensure_ascii", "indent"}},
                                 Filter{"upper"},
                                 Filter{"lower"},
                                 Filter{"capitalize"},
                                 Filter{"default", {"default_value", "boolean"}},
                                 Filter{"d", {"default_value", "boolean"}},
                                 Filter{"list"},
                                 Filter{"first"},
                                 Filter{"last"},
                                 Filter{"join", {"d"}},
                                 Filter{"string"},
                                 Filter{"int", {"default"}},
                                 Filter{"replace", {"old", "new"}},
                                 Filter{"safe"},
                                 Filter{"items"},
                                 Filter{"map", {}, true},
                                 Filter{"reverse"},
                                 Filter{"select", {}, true},
                                 Filter{"reject", {}, true},
                                 Filter{"selectattr", {}, true},
                                 Filter{"rejectattr", {}, true},
                                 Filter{"dictsort"},
                                 Filter{"unique"}};
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

enum class Ends { kBoth, kLeft, kRight };

std::string_view stripped(std::string_view text, const Value& unwanted, Ends ends) {
  std::unordered_set<std::string_view> known;  // not looked for in a text, which may be long
  for (std::string_view rest = unwanted.text() ? *unwanted.text() : std::string_view();
       !rest.empty();
       rest.remove_prefix(first_character(rest).size())) {
    known.insert(first_character(rest));
  }
  const auto goes = [&](std::string_view character) {
    return unwanted.text() ? known.contains(character) : is_blank(character);
  };
  while (ends != Ends::kRight && !text.empty() && goes(first_character(text))) {
    text.remove_prefix(first_character(text).size());
  }
  while (ends != Ends::kLeft && !text.empty() && goes(last_character(text))) {
    text.remove_suffix(last_character(text).size());
  }
  return text;
}

// std::string::find takes the product of both lengths where the text nearly has the part at every
// place; memmem at most their sum.
std::size_t find_part(std::string_view text, std::string_view part, std::size_t from) {
  const void* const found =
      memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

// What is between runs of white space; the last of more than `limit` + 1 is all the rest.
Value::List words(std::string_view text, int64_t limit, Budget& budget) {
  Value::List parts;
  while (!(text = stripped(text, {}, Ends::kLeft)).empty()) {
    std::size_t end = 0;
    while (end < text.size() &&
           (std::ssize(parts) == limit || !is_blank(first_character(text.substr(end))))) {
      end += first_character(text.substr(end)).size();
    }
    budget.spend(kItemBytes);
    parts.emplace_back(std::string(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return parts;
}

Value::List split(const std::string& text,
                  const Value& separator,
                  const Value& most,
                  Budget& budget) {
  const int64_t limit = most.integer() && *most.integer() >= 0
                            ? *most.integer()
                            : std::numeric_limits<int64_t>::max();
  if (!separator.text()) return words(text, limit, budget);
  Value::List parts;
  if (separator.text()->empty()) throw Error("split: the separator is empty");
  std::size_t begin = 0;
  for (std::size_t at = 0; std::ssize(parts) < limit &&
                           (at = find_part(text, *separator.text(), begin)) != std::string::npos;) {
    budget.spend(kItemBytes);
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
  for (std::size_t at = 0; (at = find_part(text, from, begin)) != std::string::npos;
       begin = at + from.size()) {
    append_text(out, std::string_view(text).substr(begin, at - begin));
    append_text(out, to);
  }
  append_text(out, std::string_view(text).substr(begin));
  return out;
}

std::string joined(const Value& list, const std::string& separator, Budget& budget) {
  std::string out;
  bool first = true;
  for (const Value& item : items_of(list, budget)) {
    if (!first) append_text(out, separator);
    first = false;
    append_text(out, to_text(item));
  }
  return out;
}

int64_t length_of(const Value& value) {
  if (value.text()) return num_characters(*value.text());
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

// A number of Python without its underscores: each of them stands between two digits. Others stay,
// and make it no number.
std::string without_underscores(std::string_view number) {
  const auto is_digit = [&](size_t i) {
    return i < number.size() && std::isdigit(static_cast<unsigned char>(number[i])) != 0;
  };
  std::string plain;
  for (size_t i = 0; i < number.size(); ++i) {
    if (number[i] != '_' || i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) plain += number[i];
  }
  return plain;
}

Value to_integer(const Value& value, const Value& fallback) {
  if (value.is_undefined()) throw Error("int: what is undefined has no number");
  if (value.integer()) return value;
  if (value.is_number()) {
    if (!(std::abs(value.as_real()) < 9e18)) throw Error("int: the number is too large");
    return static_cast<int64_t>(value.as_real());
  }
  if (value.text()) {
    const std::string plain =
        without_underscores(with_ascii_digits(stripped(*value.text(), {}, Ends::kBoth)));
    std::string_view digits = plain;
    if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
    const char* const end = digits.data() + digits.size();
    int64_t number = 0;
    const auto [rest, error] = std::from_chars(digits.data(), end, number);
    if (rest == end && error == std::errc()) return number;
    double real = 0;
    const auto [behind, failure] = std::from_chars(digits.data(), end, real);
    if (behind == end && failure == std::errc() && std::isfinite(real)) {
      return to_integer(real, fallback);
    }
  }
  return fallback.is_undefined() ? Value(int64_t{0}) : fallback;
}

// For comparisons: texts without their case.
Value folded(const Value& value) {
  return value.text() ? Value(lower_case(*value.text())) : value;
}

Value attribute_of(const Value& item, const Value& name) {
  return item.map() && name.text() ? find(*item.map(), *name.text()) : Value();
}

// map(attribute=...) and map('filter').
Value::List mapped_items(const Value& input, const Arguments& arguments, Budget& budget) {
  const Value attribute = arguments.at(99, "attribute");
  Value::List out;
  if (!input.is_true()) return out;
  for (const Value& item : items_of(input, budget)) {
    if (!attribute.is_undefined()) {
      out.push_back(attribute_of(item, attribute));
      continue;
    }
    const std::string filter = text_of(arguments.at(0), "map");
    if (!is_filter(filter)) throw Error(fmt::format("the filter {:?} is not supported", filter));
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin());
    out.push_back(apply_filter(filter, item, rest, budget));
    budget.spend(out.back().weight());
  }
  return out;
}

// select, reject, selectattr and rejectattr: by a test, or by what is true.
Value::List selected(std::string_view name,
                     const Value& input,
                     const Arguments& arguments,
                     Budget& budget) {
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  if (!input.is_true()) return {};
  Value::List out;
  for (const Value& item : items_of(input, budget)) {
    const Value asked = by_attribute ? attribute_of(item, arguments.at(0)) : item;
    Arguments rest = arguments;
    const std::size_t test_at = by_attribute ? 1 : 0;
    bool holds = asked.is_true();
    if (arguments.positional.size() > test_at) {
      const std::string test = text_of(arguments.at(test_at), name);
      if (!is_test(test)) throw Error(fmt::format("the test {:?} is not supported", test));
      rest.positional.erase(rest.positional.begin(),
                            rest.positional.begin() + static_cast<std::ptrdiff_t>(test_at + 1));
      for (const Value& other : rest.positional) budget.spend(other.weight());
      holds = apply_test(test, asked, rest);
    }
    if (holds == wanted) out.push_back(item);
  }
  return out;
}

Value::List unique_items(const Value& input, Budget& budget) {
  constexpr std::ptrdiff_t kMost = 4096;  // each is compared with all before it
  Value::List out, seen;
  for (const Value& item : items_of(input, budget)) {
    const Value key = folded(item);
    budget.spend(key.weight() * std::ssize(seen));
    if (std::ranges::any_of(seen, [&](const Value& other) { return equal(other, key); })) continue;
    if (std::ssize(out) == kMost) {
      throw Error(fmt::format("unique: there are more than {} different items", kMost));
    }
    seen.push_back(key);
    out.push_back(item);
  }
  return out;
}

// What is not known is not left out: the text would be another than the template means.
void check_arguments(const Filter& filter, const Arguments& arguments) {
  if (filter.passes_on) return;
  const auto end = std::ranges::find(filter.parameters, std::string_view());
  const std::span known(filter.parameters.begin(), end);
  const auto fail = [&](const std::string& argument) {
    throw Error(fmt::format("{}: the argument {} is not supported; expected {}",
                            filter.name,
                            argument,
                            known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
  };
  if (arguments.positional.size() > known.size()) fail(fmt::format("{}", known.size() + 1));
  for (const auto& [name, value] : arguments.named) {
    if (std::ranges::find(known, name) == known.end()) fail(fmt::format("{:?}", name));
  }
}

// By their keys without their case.
Value::List sorted_items(const Value& input) {
  std::vector<std::pair<std::string, Value>> items;
  for (Value& item : map_items(input)) {
    std::string key = lower_case(*(*item.list())[0].text());
    items.emplace_back(std::move(key), std::move(item));
  }
  std::ranges::stable_sort(items, {}, &std::pair<std::string, Value>::first);
  Value::List sorted;
  for (auto& [key, item] : items) sorted.push_back(std::move(item));
  return sorted;
}

Value apply_list_filter(std::string_view name,
                        const Value& input,
                        const Arguments& arguments,
                        Budget& budget) {
  if (name == "map") return mapped_items(input, arguments, budget);
  if (name == "items") return map_items(input);
  if (name == "unique") return unique_items(input, budget);
  if (name == "dictsort") return sorted_items(input);
  if (name.starts_with("select") || name.starts_with("reject")) {
    return selected(name, input, arguments, budget);
  }
  Value::List items = items_of(input, budget);
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
  return std::ranges::find(kFilters, name, &Filter::name) != kFilters.end();
}
bool is_test(std::string_view name) {
  return std::ranges::find(kTests, name) != kTests.end();
}
bool is_method(std::string_view name) {
  return std::ranges::find(kMethods, name) != kMethods.end();
}

bool contains(const Value& b, const Value& a) {
  if (b.text()) {
    const std::string part = text_of(a, "what is looked for in a string");
    return find_part(*b.text(), part, 0) != std::string::npos;
  }
  if (b.map()) return a.text() && !find(*b.map(), *a.text()).is_undefined();
  if (b.is_undefined()) return false;
  if (!b.list()) throw Error(fmt::format("{} has no items", b.type_name()));
  return std::ranges::any_of(*b.list(), [&](const Value& item) { return equal(item, a); });
}

Value::List items_of(const Value& value, Budget& budget) {
  const int64_t count = value.text()   ? num_characters(*value.text())
                        : value.list() ? std::ssize(*value.list())
                        : value.map()  ? std::ssize(*value.map())
                                       : 0;
  budget.spend(count * kItemBytes);
  if (value.list()) return *value.list();
  if (value.is_undefined()) return {};
  if (value.map()) return keys_of(value);
  if (!value.text()) throw Error(fmt::format("{} has no items", value.type_name()));
  Value::List items;
  for (const std::string_view one : characters(*value.text())) items.emplace_back(std::string(one));
  return items;
}

Value apply_filter(std::string_view name,
                   const Value& input,
                   const Arguments& arguments,
                   Budget& budget) {
  check_arguments(*std::ranges::find(kFilters, name, &Filter::name), arguments);
  if (name == "length" || name == "count") return length_of(input);
  if (name == "tojson") {
    JsonOptions options{.ensure_ascii = arguments.at(0, "ensure_ascii").is_true()};
    const Value indent = arguments.at(1, "indent");
    if (indent.integer()) options.indent = std::clamp<int64_t>(*indent.integer(), 0, 16);
    return to_json(input, options);
  }
  if (name == "default" || name == "d") {
    const bool also_false = arguments.at(1, "boolean").is_true();
    const bool is_missing = input.is_undefined() || (also_false && !input.is_true());
    return is_missing ? arguments.at(0, "default_value") : input;
  }
  if (name == "safe") return input;
  if (name == "string") return to_text(input);
  if (name == "int") return to_integer(input, arguments.at(0, "default"));
  if (name == "join") {
    const Value separator = arguments.at(0, "d");
    return joined(input, separator.is_undefined() ? "" : to_text(separator), budget);
  }
  if (name == "trim") {
    return std::string(stripped(to_text(input), arguments.at(0, "chars"), Ends::kBoth));
  }
  if (name == "upper") return upper_case(to_text(input));
  if (name == "lower") return lower_case(to_text(input));
  if (name == "capitalize") return capitalized(to_text(input), Capitals::kFirst);
  if (name == "replace") {
    return replaced(to_text(input),
                    text_of(arguments.at(0, "old"), "replace"),
                    text_of(arguments.at(1, "new"), "replace"));
  }
  return apply_list_filter(name, input, arguments, budget);
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

Value call_method(std::string_view name,
                  const Value& object,
                  const Arguments& arguments,
                  Budget& budget) {
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
  if (name == "strip") return std::string(stripped(text, arguments.at(0), Ends::kBoth));
  if (name == "lstrip") return std::string(stripped(text, arguments.at(0), Ends::kLeft));
  if (name == "rstrip") return std::string(stripped(text, arguments.at(0), Ends::kRight));
  if (name == "split") {
    return split(text, arguments.at(0, "sep"), arguments.at(1, "maxsplit"), budget);
  }
  if (name == "startswith") return text.starts_with(text_of(arguments.at(0), name));
  if (name == "endswith") return text.ends_with(text_of(arguments.at(0), name));
  if (name == "title") return capitalized(text, Capitals::kWords);
  if (name == "join") return joined(arguments.at(0), text, budget);
  return apply_filter(name, object, arguments, budget);  // upper, lower, capitalize, replace
}

}  // namespace reynard::jinja
