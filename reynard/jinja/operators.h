#pragma once
// What the operators of chat templates mean: Python's rules.

#include "reynard/jinja/value.h"

#include <cstdint>
#include <string>
#include <vector>

namespace reynard::jinja {

// The indices of a[begin:end:step] where a has this length; parts left out are undefined.
std::vector<int64_t> slice_of(int64_t length,
                              const Value& begin,
                              const Value& end,
                              const Value& step);
// object[index]; undefined where there is none.
Value item_of(const Value& object, const Value& index);
// op: + - * / // %. Throws reynard::Error for what is no number, overflows or divides by 0.
Value arithmetic(const std::string& op, const Value& a, const Value& b);
// Throws reynard::Error where there is no order.
bool is_less(const Value& a, const Value& b);

}  // namespace reynard::jinja
