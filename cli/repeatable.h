#pragma once
// Options that may be given several times, with one value each time: the word behind it is not
// theirs, and the help shows one.

#include <CLI/CLI.hpp>

namespace reynard::cli {

inline void make_repeatable(CLI::Option& option) {
  option.expected(1)->allow_extra_args(false)->take_all();
}

}  // namespace reynard::cli
