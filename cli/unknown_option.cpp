#include "cli/unknown_option.h"

#include "reynard/config/nearest_key.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <vector>

namespace reynard::cli {

std::string nearest_option(const CLI::App& command, const std::string& given) {
  std::vector<std::string> known;
  for (const CLI::Option* const option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  return config::nearest_key(given, known);
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
