#pragma once
// What the program says to its user on standard error.

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace reynard::cli {

// What cannot be written there is lost: no command fails because nobody hears it.
template <class... Values>
void print_message(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = fmt::format(format, std::forward<Values>(values)...);
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace reynard::cli
