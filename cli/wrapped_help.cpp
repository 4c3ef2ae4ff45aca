#include "cli/wrapped_help.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace reynard::cli {

namespace {

// Where a line goes on: below its text.
std::size_t hanging_indent(std::string_view line, std::size_t columns) {
  const std::size_t begin = line.find_first_not_of(' ');
  const std::size_t gap = line.find("  ", begin);
  const std::size_t text = gap == line.npos ? begin : line.find_first_not_of(' ', gap);
  return std::min(text == line.npos ? begin : text, columns / 2);
}

bool is_command(std::string_view line) {
  const std::size_t begin = line.find_first_not_of(' ');
  return begin == 2 && line.find("  ", begin) == line.npos;
}

std::string_view without_blanks_before(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}
std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

std::string wrapped_line(std::string_view line, std::size_t columns) {
  if (line.size() <= columns || is_command(line)) return std::string(line);
  const std::size_t indent = hanging_indent(line, columns);
  std::string wrapped;
  std::size_t room = columns, begin = line.find_first_not_of(' ');
  while (line.size() > room) {
    std::size_t blank = line.rfind(' ', room);
    if (blank == line.npos || blank < begin) blank = line.find(' ', room);  // a longer word
    if (blank == line.npos) break;
    wrapped.append(without_blanks_behind(line.substr(0, blank))).append("\n").append(indent, ' ');
    line = without_blanks_before(line.substr(blank));
    room = columns - indent, begin = 0;
  }
  return wrapped.append(line);
}

}  // namespace

std::size_t output_columns() {
  constexpr std::size_t kLeast = 60, kOtherwise = 100;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return std::max<std::size_t>(size.ws_col, kLeast);
  }
  std::size_t given = kOtherwise;
  if (const char* columns = std::getenv("COLUMNS")) {
    const std::string_view text = columns;
    std::from_chars(text.data(), text.data() + text.size(), given);
  }
  return std::max(given, kLeast);
}

std::string wrapped_help(std::string_view help, std::size_t columns) {
  std::string wrapped;
  while (!help.empty()) {
    const std::size_t end = std::min(help.find('\n'), help.size());
    wrapped.append(wrapped_line(help.substr(0, end), columns)).append("\n");
    help.remove_prefix(std::min(end + 1, help.size()));
  }
  return wrapped;
}

void wrap_help(CLI::App& app) {
  app.formatter_fn([](const CLI::App* command, std::string name, CLI::AppFormatMode mode) {
    return wrapped_help(CLI::Formatter().make_help(command, std::move(name), mode),
                        output_columns());
  });
}

}  // namespace reynard::cli
