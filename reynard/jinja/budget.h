#pragma once
// What a template may do while it runs: so many steps, as which bytes count that it makes or goes
// through. Whoever does either spends before, so that memory is bounded as time is.

#include <cstdint>

namespace reynard::jinja {

class Value;

class Budget {
 public:
  // A step with so many bytes of text. Throws reynard::Error where the template takes too long.
  void spend(int64_t bytes);
  // What is in a list or a map, and in what is in it: for what copies, compares or writes it.
  void spend_items(const Value& value);

 private:
  int64_t steps_ = 0;
};

}  // namespace reynard::jinja
