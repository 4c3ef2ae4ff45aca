#pragma once
// Help as wide as the terminal.

#include <cstddef>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace reynard::cli {

// Lines that are longer go on in the next one, below their text: behind the name of an option, as
// far as half of the columns leave that. Commands of examples, with two blanks before them, stay as
// they are, to be copied.
std::string wrapped_help(std::string_view help, std::size_t columns);

// Of the terminal at standard output, of $COLUMNS without one, else 100; 60 at least.
std::size_t output_columns();

// Every command that the program gets from now on shows its help so, in the terminal's columns.
void wrap_help(CLI::App& app);

}  // namespace reynard::cli
