// reynard completion: a shell function that completes commands, their options and config keys.

#include "cli/command.h"
#include "reynard/config/config.h"
#include "reynard/evaluation/evaluation_config.h"
#include "reynard/training/experiment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace reynard::cli {

namespace {

constexpr const char* kFooter =
    "For this shell:\n"
    "  source <(reynard completion)\n"
    "\n"
    "For every bash (the folder is that of bash-completion):\n"
    "  reynard completion > ~/.local/share/bash-completion/completions/reynard\n"
    "\n"
    "For every zsh, in ~/.zshrc:\n"
    "  autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
    "  source <(reynard completion)";

// Options take files where they take anything, so what is no option or command is left to the
// shell.
constexpr const char* kFunction = R"(_reynard() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} command= words= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$command ${{COMP_WORDS[i]}}" in
      {0}) command+=" ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$command:$current" in
{1}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ ${{#COMPREPLY[@]}} == 1 && ${{COMPREPLY[0]}} == *= ]]; then
    compopt -o nospace 2>/dev/null
  fi
}}
complete -o default -F _reynard reynard
)";

// Groups of options are commands without a name to the library.
void add_options(const CLI::App& command, std::vector<std::string>& names) {
  for (const CLI::Option* const option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* const group : command.get_subcommands({})) {
    if (group->get_name().empty()) add_options(*group, names);
  }
}

template <config::Section T>
void add_keys(std::vector<std::string>& names) {
  for (const config::KeyInfo& key : config::describe<T>()) names.push_back("--" + key.path + "=");
}

// Cases of the function for a command, whose words are `path` (" tokenizer train"), and for those
// below it.
struct Cases {
  std::vector<std::string> paths;
  std::string text;

  void add(const CLI::App& command, const std::string& path) {
    std::vector<std::string> options, commands;
    add_options(command, options);
    if (path == " train") add_keys<training::Experiment>(options);
    if (path == " eval") add_keys<evaluation::EvaluationConfig>(options);
    add_case(path, "-*", options);
    for (const CLI::App* const sub : command.get_subcommands({})) {
      if (sub->get_name().empty()) continue;
      commands.push_back(sub->get_name());
      const std::string sub_path = path + " " + sub->get_name();
      paths.push_back("\"" + sub_path + "\"");
      add(*sub, sub_path);
    }
    if (!commands.empty()) add_case(path, "*", commands);
  }

 private:
  void add_case(const std::string& path,
                const char* current,
                const std::vector<std::string>& words) {
    text += fmt::format("    \"{}:\"{}) words=\"{}\" ;;\n", path, current, fmt::join(words, " "));
  }
};

}  // namespace

void add_completion(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "completion", "Print a function with which bash or zsh completes commands");
  command->footer(kFooter);
  command->callback([&app] {
    Cases cases;
    cases.add(app, "");
    fmt::print(kFunction, fmt::join(cases.paths, " | "), cases.text);
  });
}

}  // namespace reynard::cli
