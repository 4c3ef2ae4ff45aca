#pragma once
// A chat template as tokens, with the rules for white space that `transformers` runs templates
// with: the newline after a {% %} or {# #} goes (trim_blocks), and so do blanks before one that
// begins its line (lstrip_blocks).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reynard::jinja {

struct Token {
  enum class Kind {
    kText,   // outside of tags
    kOpen,   // "{%" or "{{"
    kClose,  // "%}" or "}}"
    kName,
    kString,  // without quotes, escapes undone
    kInteger,
    kReal,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int64_t line = 1;
};

// The last token is kEnd. Throws reynard::Error "line 3: ..." for what is no template.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace reynard::jinja
