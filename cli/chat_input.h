#pragma once
// Lines from standard input for a conversation: Ctrl-C while one is awaited is noticed.

#include <optional>
#include <string>

namespace reynard::cli {

class ChatInput {
 public:
  // The next line; one that ends with a backslash goes on in the next. Nothing at the end of the
  // input, or at Ctrl-C (then stop_flag() is set). prompt: shown where a person types.
  std::optional<std::string> next(const std::string& prompt);

 private:
  std::optional<std::string> read_line();

  std::string buffer_;
  bool ended_ = false;
};

}  // namespace reynard::cli
