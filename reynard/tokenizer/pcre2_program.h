#pragma once
// A regular expression in PCRE2's own syntax, compiled for UTF-8 text.

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace reynard::tokenizer {

class Pcre2Program {
 public:
  // Throws reynard::Error with PCRE2's words for a pattern that cannot be compiled.
  explicit Pcre2Program(std::string_view pattern);
  ~Pcre2Program();
  Pcre2Program(Pcre2Program&&) noexcept;
  Pcre2Program& operator=(Pcre2Program&&) noexcept;

  // As Regex::for_each_match. false: it gave up, for this text needs too many steps.
  bool for_each_match(std::string_view text,
                      const std::function<void(std::size_t begin, std::size_t end)>& found) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace reynard::tokenizer
