#include "cli/unknown_option.h"

#include "reynard/config/nearest_key.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace reynard::cli {

std::string nearest_option(const CLI::App& command, const std::string& given) {
  std::vector<std::string> known;
  for (const CLI::Option* const option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string near = config::nearest_key(given, known);
  if (!near.empty()) return near;
  // A name cut short is far by its letters.
  constexpr std::size_t kTelling = 5;  // "--out"
  const auto whole =
      std::ranges::find_if(known, [&](const std::string& name) { return name.starts_with(given); });
  return given.size() < kTelling || whole == known.end() ? "" : *whole;
}

void check_options(const CLI::App& command) {
  for (const std::string& word : command.remaining()) {
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || name.find('.') != std::string::npos) continue;
    const std::string near = nearest_option(command, name);
    if (near.empty()) continue;
    throw Error(fmt::format("{} is not a known option; did you mean {}?", name, near));
  }
}

}  // namespace reynard::cli
