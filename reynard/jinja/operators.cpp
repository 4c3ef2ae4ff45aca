#include "reynard/jinja/operators.h"

#include "reynard/jinja/letters.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace reynard::jinja {

namespace {

int64_t integer_of(const Value& value) {
  return value.boolean() ? static_cast<int64_t>(*value.boolean()) : *value.integer();
}

}  // namespace

std::vector<int64_t> slice_of(int64_t length,
                              const Value& begin,
                              const Value& end,
                              const Value& by) {
  const auto given = [](const Value& value, int64_t fallback) {
    if (value.is_undefined() || value.is_none()) return fallback;
    if (!value.integer()) throw Error("a part of a slice is no integer");
    return *value.integer();
  };
  const int64_t step = given(by, 1);
  if (step == 0) throw Error("a slice has the step 0");
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
  const auto placed = [&](const Value& value, int64_t fallback) {
    const int64_t at = given(value, fallback);
    const bool is_given = !value.is_undefined() && !value.is_none();
    return std::clamp(is_given && at < 0 ? at + length : at, low, high);
  };
  const int64_t first = placed(begin, step > 0 ? low : high);
  const int64_t last = placed(end, step > 0 ? high : low);
  std::vector<int64_t> indices;
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    indices.push_back(i);
    if (step > length || step < -length) break;  // the next one lies outside, and might overflow
    i += step;
  }
  return indices;
}

Value item_of(const Value& object, const Value& index) {
  if (object.map()) return index.text() ? find(*object.map(), *index.text()) : Value();
  if (object.is_undefined()) throw Error("a part of what is undefined is asked for");
  if (!index.integer()) return {};
  const auto at = [&](int64_t length) {
    const int64_t i = *index.integer() < 0 ? *index.integer() + length : *index.integer();
    return i >= 0 && i < length ? i : -1;
  };
  if (object.list()) {
    const int64_t i = at(std::ssize(*object.list()));
    return i < 0 ? Value() : (*object.list())[static_cast<std::size_t>(i)];
  }
  if (!object.text()) return {};
  std::string_view rest = *object.text();
  const int64_t i = at(num_characters(rest));
  if (i < 0) return {};
  for (int64_t before = 0; before < i; ++before) rest.remove_prefix(first_character(rest).size());
  return std::string(first_character(rest));
}

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) {
    throw Error(fmt::format("{} {} {} has no value", a.type_name(), op, b.type_name()));
  }
  if (a.real() || b.real() || op == "/") {
    const double x = a.as_real(), y = b.as_real();
    if (op == "+") return x + y;
    if (op == "-") return x - y;
    if (op == "*") return x * y;
    if (y == 0) throw Error("a division by 0");
    if (op == "/") return x / y;
    return op == "//" ? std::floor(x / y) : x - y * std::floor(x / y);
  }
  const int64_t x = integer_of(a), y = integer_of(b);
  int64_t result = 0;
  bool overflows = false;
  if (op == "+") {
    overflows = __builtin_add_overflow(x, y, &result);
  } else if (op == "-") {
    overflows = __builtin_sub_overflow(x, y, &result);
  } else if (op == "*") {
    overflows = __builtin_mul_overflow(x, y, &result);
  } else {
    if (y == 0) throw Error("a division by 0");
    if (y == -1) return op == "//" ? arithmetic("-", int64_t{0}, a) : Value(int64_t{0});
    const int64_t rest = ((x % y) + y) % y;
    result = op == "%" ? rest : (x - rest) / y;
  }
  if (overflows) throw Error("a number is too large");
  return result;
}

bool is_less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_real() < b.as_real();
  if (a.text() && b.text()) return *a.text() < *b.text();
  throw Error(fmt::format("{} and {} have no order", a.type_name(), b.type_name()));
}

}  // namespace reynard::jinja
