#pragma once
// JSON of which one part after the other is of another type: what a reader of files must survive.

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace reynard::test {

// Calls `use` with the value while each of its parts in turn is replaced by a value of each other
// type; of lists, where one entry is like the others, the first and the last alone.
//   place: of the part, as "/metrics/loss"
inline void with_each_part_damaged(
    nlohmann::json& whole,
    const std::function<void(const std::string& place, const nlohmann::json& damage)>& use,
    const nlohmann::json::json_pointer& at = nlohmann::json::json_pointer()) {
  const std::vector<nlohmann::json> others = {nlohmann::json::object(),
                                              nlohmann::json::array(),
                                              {{"a", 1}},
                                              {1, 2},
                                              "x",
                                              1e300,
                                              true,
                                              nullptr};
  nlohmann::json& part = whole[at];
  if (!at.empty()) {
    const nlohmann::json kept = part;
    for (const nlohmann::json& other : others) {
      if (other.type() == kept.type() && !kept.is_structured()) continue;
      part = other;
      use(at.to_string(), other);
    }
    part = kept;
  }
  if (part.is_object()) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : part.items()) keys.push_back(key);
    for (const std::string& key : keys) with_each_part_damaged(whole, use, at / key);
  } else if (part.is_array()) {
    for (size_t i = 0; i < part.size(); ++i) {
      if (i == 0 || i + 1 == part.size()) with_each_part_damaged(whole, use, at / i);
    }
  }
}

}  // namespace reynard::test
