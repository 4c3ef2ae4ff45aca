#pragma once
// A number of things as messages say it.

#include <concepts>
#include <string>
#include <string_view>

namespace reynard {

// "1 token", "2 tokens". noun: its singular, whose plural ends in s.
template <std::integral Number>
std::string counted(Number count, std::string_view noun) {
  return std::to_string(count) + ' ' + std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace reynard
