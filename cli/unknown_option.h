#pragma once
// Words of a command line that look like options and are none: which option was meant. Keys of a
// config, --section.key=value, are the config reader's.

#include <string>

namespace CLI {
class App;
}

namespace reynard::cli {

// "--max-tokens" for "--max_tokens"; empty where no option of the command is near.
std::string nearest_option(const CLI::App& command, const std::string& given);

// For commands that take keys of a config beside their options. Throws reynard::Error for a word
// that is no option but near one.
void check_options(const CLI::App& command);

}  // namespace reynard::cli
