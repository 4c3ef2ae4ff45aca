#pragma once
// Brings a list into random order, as Python's random.shuffle walks it.

#include "reynard/evaluation/python_random.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace reynard::evaluation {

template <class Value>
void shuffle(std::vector<Value>& values, PythonRandom& random) {
  for (auto i = static_cast<int64_t>(values.size()) - 1; i > 0; --i) {
    std::swap(values[i], values[random.up_to(i)]);
  }
}

}  // namespace reynard::evaluation
