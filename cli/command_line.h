#pragma once
// The command line of this process, as a shell would take it.

#include <string>

namespace reynard::cli {

// From /proc/self/cmdline; the program's name without its folder.
std::string command_line();

}  // namespace reynard::cli
