#include "cli/usage_error.h"

#include "cli/unknown_option.h"
#include "reynard/config/nearest_key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace reynard::cli {

namespace {

// Whether the letters of a word stand in a name in this order, the first one first: "attn" of
// "attention".
bool is_short_for(std::string_view word, std::string_view name) {
  constexpr std::size_t kTelling = 3;
  if (word.size() < kTelling || !name.starts_with(word[0])) return false;
  for (const char letter : word) {
    const std::size_t at = name.find(letter);
    if (at == std::string_view::npos) return false;
    name.remove_prefix(at + 1);
  }
  return true;
}

std::string nearest_command(const CLI::App& app, const std::string& given) {
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(command->get_name());
  }
  const std::string near = config::nearest_key(given, known);
  if (!near.empty()) return near;
  const auto whole = std::ranges::find_if(
      known, [&](const std::string& name) { return is_short_for(given, name); });
  return whole == known.end() ? "" : *whole;
}

// names: of the command and those above it, each with a blank behind it.
std::string see_help(const std::string& names) {
  return fmt::format("see `reynard {}--help`", names);
}

// An option of one value that has several.
std::string given_again(const CLI::App& command) {
  for (const CLI::Option* const option : command.get_options()) {
    if (option->get_items_expected_max() != 1 || option->count() < 2) continue;
    return fmt::format("{} is given {} times; give it once", option->get_name(), option->count());
  }
  return "";
}

// A positional that has nothing yet; null: none.
const CLI::Option* open_positional(const CLI::App& command) {
  const std::vector<const CLI::Option*> options =
      command.get_options([](const CLI::Option* option) { return option->get_positional(); });
  const auto open =
      std::ranges::find_if(options, [](const CLI::Option* option) { return option->count() == 0; });
  return open == options.end() ? nullptr : *open;
}

// A word that looks like an option of the command and is none.
std::string unknown_option(const CLI::App& command,
                           const std::string& word,
                           const std::string& names) {
  const std::string given = word.substr(0, word.find('='));
  const std::string near = nearest_option(command, given);
  if (!near.empty()) {
    return fmt::format("{} is not a known option; did you mean {}?", given, near);
  }
  const CLI::Option* const open = open_positional(command);
  const std::string how = open == nullptr ? ""
                                          : fmt::format("a {} that begins with - goes behind --; ",
                                                        open->get_name(true));
  return fmt::format("{} is not a known option; {}{}", given, how, see_help(names));
}

// Words of the command line that the command takes no option or argument from.
std::string unexpected(const CLI::App& command,
                       std::vector<std::string> words,
                       const std::string& names) {
  if (std::erase(words, "--") > 0) {
    return fmt::format(
        "{}: more than {}takes; words behind -- are no options: give options before it; {}",
        fmt::join(words, " "),
        names,
        see_help(names));
  }
  const auto option =
      std::ranges::find_if(words, [](const std::string& word) { return word.starts_with('-'); });
  if (option != words.end()) return unknown_option(command, *option, names);
  return fmt::format("{}: more than {}takes; put quotes around a text with blanks; {}",
                     fmt::join(words, " "),
                     names,
                     see_help(names));
}

std::string message_of(const CLI::App& app, const CLI::Error& error) {
  const auto commands = app.get_subcommands();
  if (commands.empty() && !app.remaining().empty()) {
    const std::string word = app.remaining().front();
    return word.starts_with('-') ? unknown_option(app, word, "") : no_command(app, "", word);
  }
  const CLI::App* last = &app;
  std::string names;
  while (!last->get_subcommands().empty()) {
    last = last->get_subcommands().front();
    names += last->get_name() + " ";
  }
  const auto unknown = last->remaining();
  const bool asks_for_more = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (asks_for_more && last->get_require_subcommand_min() > 0 && !unknown.empty()) {
    return no_command(*last, names, unknown.front());
  }
  // A slip in an option's name is why it is missing.
  const bool has_unknown = !unknown.empty() && !last->get_allow_extras();
  if (has_unknown && (asks_for_more || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)) {
    return unexpected(*last, unknown, names);
  }
  const bool has_too_many = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  const std::string again = has_too_many ? given_again(*last) : "";
  return fmt::format("{}; {}", again.empty() ? error.what() : again, see_help(names));
}

}  // namespace

std::string no_command(const CLI::App& app, const std::string& before, const std::string& word) {
  const std::string near = nearest_command(app, word);
  return fmt::format("{}{} is no command; {}",
                     before,
                     word.empty() ? "\"\"" : word,
                     near.empty() ? see_help(before) : fmt::format("did you mean {}?", near));
}

std::string usage_error(const CLI::App* app, const CLI::Error& error) {
  return fmt::format("reynard: {}\n", message_of(*app, error));
}

}  // namespace reynard::cli
