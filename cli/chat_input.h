#pragma once
// Lines from standard input for a conversation: Ctrl-C while one is awaited is noticed.

#include <optional>
#include <string>

namespace reynard::cli {

class ChatInput {
 public:
  // The next line; one that ends with a backslash goes on in the next. One that the terminal has
  // cut is refused with a message, with what it goes on from, and asked for again. Nothing at the
  // end of the input, or at Ctrl-C (then stop_flag() is set). prompt: shown where a person types.
  std::optional<std::string> next(const std::string& prompt);

 private:
  std::optional<std::string> read_line();

  std::string buffer_;
  bool ended_ = false;
  bool is_cut_ = false;  // of what was read, the last line
};

}  // namespace reynard::cli
