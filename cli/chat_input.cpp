#include "cli/chat_input.h"

#include "cli/stop_signal.h"
#include "reynard/tensor/error.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>

namespace reynard::cli {

namespace {

constexpr std::size_t kMaxLine = std::size_t{16} << 20U;
constexpr int kPatienceMs = 200;  // a signal just before poll() is noticed after this

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
      buffer_.append(bytes.data(), static_cast<std::size_t>(count));
    }
    if (buffer_.size() > kMaxLine) throw Error("chat: a line is longer than 16 MiB");
  }
}

std::optional<std::string> ChatInput::next(const std::string& prompt) {
  const bool is_person = isatty(STDIN_FILENO) != 0;
  std::string text;
  for (bool first = true;; first = false) {
    if (is_person) {
      fmt::print("{}", first ? prompt : std::string(prompt.size(), ' '));
      std::fflush(stdout);
    }
    std::optional<std::string> line = read_line();
    if (!line) return first ? std::nullopt : std::optional(text);
    if (line->ends_with('\r')) line->pop_back();
    if (!line->ends_with('\\')) return text + *line;
    line->back() = '\n';
    text += *line;
  }
}

}  // namespace reynard::cli
