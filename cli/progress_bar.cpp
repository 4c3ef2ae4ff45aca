#include "cli/progress_bar.h"

#include "cli/message.h"
#include "reynard/tokenizer/utf8.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace reynard::cli {

namespace {

constexpr int kWidth = 30;

std::string bar_text(double share) {
  const int filled = static_cast<int>(share * kWidth);
  return fmt::format("[{:=>{}}{}{: >{}}] ",
                     "",
                     filled,
                     filled < kWidth ? ">" : "",
                     "",
                     std::max(kWidth - filled - 1, 0));
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(std::clamp(seconds, 0.0, 359999.0)));
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

// Whether a line can be redrawn: not in an editor's shell or on a console that says it is "dumb".
bool has_redrawn_lines(int descriptor) {
  const char* terminal = std::getenv("TERM");
  return isatty(descriptor) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

// As much of a line as the terminal has columns for: what wraps could not be drawn over.
std::string cut_to_terminal(std::string line) {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return line;
  if (tokenizer::num_characters(line) <= size.ws_col) return line;
  line.resize(size.ws_col);
  line.resize(tokenizer::whole_characters(line));
  return line;
}

}  // namespace

ProgressBar::ProgressBar(std::string label, OffTerminal off_terminal)
    : label_(std::move(label)),
      terminal_(has_redrawn_lines(STDERR_FILENO)),
      silent_(!terminal_ && off_terminal == OffTerminal::kSilent) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && drawn_ != Clock::time_point{}) print_message("\r\033[K");
}

void ProgressBar::show(const Progress& progress) {
  using std::chrono::milliseconds;
  const auto now = Clock::now();
  const bool last = !terminal_ && progress.share >= 1;
  const bool due = now - drawn_ >= (terminal_ ? milliseconds(100) : milliseconds(10000));
  if (silent_ || !(due || last)) return;
  drawn_ = now;
  const double share = std::clamp(progress.share, 0.0, 1.0);
  const std::string left =
      progress.seconds_left ? fmt::format(" ETA {}", duration_text(*progress.seconds_left)) : "";
  const std::string text = fmt::format(
      "{:3.0f}%{}{}{}", 100 * share, progress.note.empty() ? "" : " ", progress.note, left);
  if (terminal_) {
    print_message("\r\033[K{}",
                  cut_to_terminal(fmt::format("{} {}{}", label_, bar_text(share), text)));
  } else {
    print_message("{} {}\n", label_, text);
  }
  std::fflush(stderr);
}

void ProgressBar::show(int64_t done, int64_t total) {
  if (total <= 0) return;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
  Progress progress{.share = share};
  if (share > 0) progress.seconds_left = seconds * (1 - share) / share;
  show(progress);
}

}  // namespace reynard::cli
