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
#include <limits>
#include <string_view>
#include <utility>

namespace reynard::cli {

namespace {

std::string bar_text(double share, int64_t width) {
  const auto filled = static_cast<int64_t>(share * static_cast<double>(width));
  return fmt::format("[{:=>{}}{}{: >{}}] ",
                     "",
                     filled,
                     filled < width ? ">" : "",
                     "",
                     std::max<int64_t>(width - filled - 1, 0));
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

// Of standard error; a line that wraps could not be drawn over.
int64_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : std::numeric_limits<int64_t>::max();
}

// "label [==>  ] text". The bar is what gives way where columns are missing.
std::string line_of(const std::string& label,
                    double share,
                    const std::string& text,
                    int64_t columns) {
  constexpr int64_t kWidth = 30, kLeast = 5, kAround = 4;  // "[", "] " and the blank before
  const int64_t others =
      tokenizer::num_characters(label) + kAround + tokenizer::num_characters(text);
  const int64_t width = std::min(kWidth, columns - others);
  const std::string bar = width < kLeast ? "" : bar_text(share, width);
  return std::string(
      tokenizer::first_characters(fmt::format("{} {}{}", label, bar, text), columns));
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
    print_message("\r\033[K{}", line_of(label_, share, text, terminal_columns()));
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
