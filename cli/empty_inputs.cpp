#include "cli/empty_inputs.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <string>

namespace reynard::cli {

namespace {

bool is_input(const CLI::Option& option) {
  constexpr std::array kFiles = {"--text", "--texts", "--ids", "--file"};
  const bool is_file =
      std::ranges::any_of(kFiles, [&](const char* name) { return option.check_name(name); });
  // A model may begin from nothing.
  return is_file || (option.get_positional() && !option.check_name("PROMPT"));
}

}  // namespace

void reject_empty_inputs(CLI::App& app) {
  const CLI::Validator is_named(
      [](const std::string& text) {
        return text.empty() ? std::string("is empty; expected a name") : std::string();
      },
      "");
  for (CLI::Option* const option : app.get_options()) {
    if (is_input(*option)) option->check(is_named);
  }
  for (CLI::App* const command : app.get_subcommands([](CLI::App*) { return true; })) {
    reject_empty_inputs(*command);
  }
}

}  // namespace reynard::cli
