#include "cli/command_line.h"

#include "reynard/report/escape.h"

#include <filesystem>
#include <fstream>

namespace reynard::cli {

std::string command_line() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::string line;
  for (std::string word; std::getline(in, word, '\0');) {
    if (line.empty()) {
      line = report::shell_word(std::filesystem::path(word).filename().string());
    } else {
      line += ' ';
      line += report::shell_word(word);
    }
  }
  return line;
}

}  // namespace reynard::cli
