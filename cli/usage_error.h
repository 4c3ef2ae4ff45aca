#pragma once
// What is wrong with a command line that the parser does not take, in one line that names the word
// and what was probably meant.

#include <string>

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace reynard::cli {

// "trian is no command; did you mean train?" for a word that is none of the app's commands.
// before: what stands before it, as "tokenizer ", or nothing.
std::string no_command(const CLI::App& app, const std::string& before, const std::string& word);

// For CLI::App::failure_message: with the program's name, and a newline.
std::string usage_error(const CLI::App* app, const CLI::Error& error);

}  // namespace reynard::cli
