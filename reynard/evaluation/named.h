#pragma once
// Tasks looked up by name in the tables that list them.

#include <algorithm>
#include <iterator>
#include <ranges>
#include <span>
#include <string_view>
#include <vector>

namespace reynard::evaluation {

// Throws reynard::Error "ruler: no task is called 'x'; known: niah_single_1, vt".
[[noreturn]] void fail_unknown_task(std::string_view op,
                                    std::string_view name,
                                    std::span<const std::string_view> known);

// The one of the tasks, which have a member `name`, that is called so. Throws fail_unknown_task.
template <std::ranges::forward_range Tasks>
const auto& find_named(std::string_view op, const Tasks& tasks, std::string_view name) {
  constexpr auto kName = &std::ranges::range_value_t<Tasks>::name;
  const auto found = std::ranges::find(tasks, name, kName);
  if (found != std::ranges::end(tasks)) return *found;
  std::vector<std::string_view> known;
  std::ranges::transform(tasks, std::back_inserter(known), kName);
  fail_unknown_task(op, name, known);
}

}  // namespace reynard::evaluation
