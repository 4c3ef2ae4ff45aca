#include "cli/chat_input.h"

#include "cli/message.h"
#include "cli/stop_signal.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <utility>

namespace reynard::cli {

namespace {

constexpr std::size_t kMaxLine = std::size_t{16} << 20U;
// Linux keeps so many bytes of a line that is typed or pasted at a terminal, its newline aside, and
// drops the rest without a word.
constexpr std::size_t kMaxTerminalLine = 4095;
constexpr int kPatienceMs = 200;  // a signal just before poll() is noticed after this

// Whether the terminal lets a line be edited before it is read; then each read() gives one.
bool is_read_by_line() {
  termios terminal{};
  return tcgetattr(STDIN_FILENO, &terminal) == 0 && (terminal.c_lflag & ICANON) != 0;
}

}  // namespace

std::optional<std::string> ChatInput::read_line() {
  while (true) {
    const std::size_t end = buffer_.find('\n');
    if (end != std::string::npos || (ended_ && !buffer_.empty())) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end == std::string::npos ? end : end + 1);
      return line;
    }
    if (ended_ || stop_flag()) return std::nullopt;
    pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (poll(&input, 1, kPatienceMs) <= 0) continue;
    std::array<char, 4096> bytes{};
    const ssize_t count = read(STDIN_FILENO, bytes.data(), bytes.size());
    if (count <= 0) {
      ended_ = true;
    } else {
      const std::string_view text(bytes.data(), static_cast<std::size_t>(count));
      const std::size_t length = text.size() - (text.ends_with('\n') ? 1 : 0);
      is_cut_ = is_cut_ || (length >= kMaxTerminalLine && is_read_by_line());
      buffer_ += text;
    }
    if (buffer_.size() > kMaxLine) throw Error("chat: a line is longer than 16 MiB");
  }
}

std::optional<std::string> ChatInput::next(const std::string& prompt) {
  const bool is_person = isatty(STDIN_FILENO) != 0;
  std::string text;
  bool first = true;
  while (true) {
    if (is_person) {
      fmt::print("{}", first ? prompt : std::string(prompt.size(), ' '));
      std::fflush(stdout);
    }
    std::optional<std::string> line = read_line();
    if (!line) return first ? std::nullopt : std::optional(text);
    if (std::exchange(is_cut_, false)) {
      print_message(
          "not sent: a line at a terminal is cut after {} bytes, and this one has them all; end "
          "lines with a backslash to go on in the next, or pipe the text\n",
          kMaxTerminalLine);
      text.clear();
      first = true;
      continue;
    }
    if (line->ends_with('\r')) line->pop_back();
    if (!line->ends_with('\\')) return text + *line;
    line->back() = '\n';
    text += *line;
    first = false;
  }
}

}  // namespace reynard::cli
