#pragma once
// The filters, tests and string methods that chat templates use.

#include "reynard/jinja/budget.h"
#include "reynard/jinja/value.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace reynard::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at an index or of a name; undefined where there is none.
  Value at(std::size_t index, std::string_view name = {}) const;
};

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
bool is_method(std::string_view name);

// All throw reynard::Error for values that they do not take. Whoever calls has spent what is in
// these; here what they do beyond going through it once is spent.
Value apply_filter(std::string_view name,
                   const Value& input,
                   const Arguments& arguments,
                   Budget& budget);
bool apply_test(std::string_view name, const Value& input, const Arguments& arguments);
Value call_method(std::string_view name,
                  const Value& object,
                  const Arguments& arguments,
                  Budget& budget);

// Whether a is one of b's items, keys or pieces of text.
bool contains(const Value& b, const Value& a);
// What a for goes through: items, keys or characters. They are spent before they are made.
Value::List items_of(const Value& value, Budget& budget);

}  // namespace reynard::jinja
