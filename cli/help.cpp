// reynard help COMMAND: what reynard COMMAND --help prints.

#include "cli/command.h"
#include "cli/usage_error.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

namespace reynard::cli {

void add_help(CLI::App& app) {
  CLI::App* help = app.add_subcommand("help", "Show the help of a command");
  const auto words = std::make_shared<std::vector<std::string>>();
  help->add_option("COMMAND", *words, "a command, and one of its own; default: the program's help");
  help->callback([&app, words] {
    const CLI::App* command = &app;
    std::string before;  // "tokenizer "
    std::string usage = "reynard";
    for (const std::string& word : *words) {
      const auto named =
          command->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
      if (named.empty()) throw Error(no_command(*command, before, word));
      command = named.front();
      before += word + " ";
      usage += " " + word;
    }
    // App::help() would be that of the command that runs.
    fmt::print("{}",
               command->get_formatter()->make_help(command, usage, CLI::AppFormatMode::Normal));
  });
}

}  // namespace reynard::cli
