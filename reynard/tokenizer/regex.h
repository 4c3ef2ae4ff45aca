#pragma once
// Regular expressions in the syntax that tokenizer files use (Oniguruma's), matched by PCRE2. What
// the two understand differently is translated; what cannot be is an error.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace reynard::tokenizer {

class Regex {
 public:
  // Throws reynard::Error, quoting the pattern, for one that cannot be compiled.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Calls found(begin, end) for each match in valid UTF-8 text, from left to right; a match of
  // nothing right behind another match does not count. May be called by several threads at once.
  void for_each_match(std::string_view text,
                      const std::function<void(std::size_t begin, std::size_t end)>& found) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

// The pattern in PCRE2's syntax.
std::string to_pcre2(std::string_view pattern);

// The pattern that matches exactly this text.
std::string escape_for_regex(std::string_view text);

}  // namespace reynard::tokenizer
