#include "reynard/tokenizer/regex.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/pcre2_program.h"
#include "reynard/tokenizer/unicode.h"

#include <fmt/format.h>

#include <string>

namespace reynard::tokenizer {

namespace {

constexpr std::size_t kMaxPatternBytes = 1 << 16;

Pcre2Program compiled(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    throw Error(fmt::format("a regular expression of {} bytes; at most {} are supported",
                            pattern.size(),
                            kMaxPatternBytes));
  }
  const std::string translated = to_pcre2(pattern);
  try {
    return Pcre2Program(translated);
  } catch (const Error& error) {
    throw Error(
        fmt::format("the regular expression {:?} cannot be used: {}", pattern, error.what()));
  }
}

}  // namespace

struct Regex::Compiled {
  std::string pattern;
  Pcre2Program program;
};

Regex::Regex(std::string_view pattern)
    : compiled_(std::make_unique<Compiled>(Compiled{std::string(pattern), compiled(pattern)})) {}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::for_each_match(
    std::string_view text,
    const std::function<void(std::size_t begin, std::size_t end)>& found) const {
  if (!compiled_->program.for_each_match(text, found)) {
    throw Error(fmt::format("the regular expression {:?} needs too many steps on this text",
                            compiled_->pattern));
  }
}

std::string escape_for_regex(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    out += fmt::format("\\x{{{:x}}}", static_cast<uint32_t>(c.value));
    i += static_cast<std::size_t>(c.length);
  }
  return out;
}

}  // namespace reynard::tokenizer
