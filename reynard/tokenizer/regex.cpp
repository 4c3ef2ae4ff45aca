#include "reynard/tokenizer/regex.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <memory>

namespace reynard::tokenizer {

namespace {

constexpr std::size_t kMaxPatternBytes = 1 << 16;
constexpr std::size_t kJitStackBytes = 16 << 20;
constexpr uint32_t kMatchLimit = 50'000'000;  // steps; beyond, a pattern is not worth waiting for

// White_Space; PCRE2's \s has U+180E too.
constexpr const char* kSpaceMembers =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";

std::string added_members(std::string_view category) {
  std::string members;
  for (const CharRange& range : characters_since_unicode_14()) {
    const std::string_view name = range.category;
    if (name.substr(0, category.size()) != category) continue;
    members += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}",
                           static_cast<uint32_t>(range.first),
                           static_cast<uint32_t>(range.last));
  }
  return members;
}

struct Escape {
  std::string members;  // as they stand in [...]; empty: taken over as it is
  bool negated = false;
  std::size_t length = 2;  // of the escape in the pattern
};

Escape property_escape(std::string_view pattern) {  // pattern begins with \p or \P
  Escape escape;
  escape.negated = pattern[1] == 'P';
  std::string_view name;
  if (pattern.size() > 2 && pattern[2] == '{') {
    const std::size_t close = pattern.find('}');
    if (close == std::string_view::npos) return escape;
    name = pattern.substr(3, close - 3);
    escape.length = close + 1;
  } else if (pattern.size() > 2) {
    name = pattern.substr(2, 1);
    escape.length = 3;
  }
  if (!name.empty() && name[0] == '^') {
    escape.negated = !escape.negated;
    name.remove_prefix(1);
  }
  const std::string added = added_members(name);
  escape.members = fmt::format("\\p{{{}}}{}", name, added);
  return escape;
}

Escape read_escape(std::string_view pattern) {
  Escape escape;
  const char c = pattern.size() > 1 ? pattern[1] : '\0';
  if (c == 'p' || c == 'P') return property_escape(pattern);
  escape.negated = c == 'S' || c == 'D' || c == 'H' || c == 'W';
  switch (c) {
    case 's':
    case 'S':
      escape.members = kSpaceMembers;
      break;
    case 'd':
    case 'D':
      escape.members = "\\p{Nd}" + added_members("Nd");
      break;
    case 'h':
    case 'H':  // hexadecimal digits there, horizontal spaces here
      escape.members = "0-9a-fA-F";
      break;
    case 'w':
    case 'W':
      escape.members = "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}" + added_members("L") +
                       added_members("M") + added_members("Nd") +
                       "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-"
                       "\\x{1f189}";
      break;
    default:
      break;
  }
  return escape;
}

}  // namespace

std::string to_pcre2(std::string_view pattern) {
  std::string out;
  int depth = 0;  // of [...]; Oniguruma's may nest, PCRE2's may not
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      const Escape escape = read_escape(pattern.substr(i));
      if (escape.members.empty()) {
        out += pattern.substr(i, escape.length);
      } else if (depth == 0) {
        out += fmt::format("[{}{}]", escape.negated ? "^" : "", escape.members);
      } else if (!escape.negated) {
        out += escape.members;
      } else if (pattern[i + 1] == 'S') {
        out += "\\S\\x{180e}";
      } else {
        out += pattern.substr(i, escape.length);
      }
      i += escape.length - 1;
      continue;
    }
    if (depth > 0 && (c == '[' || (c == '&' && pattern.substr(i, 2) == "&&"))) {
      const bool posix = pattern.substr(i, 2) == "[:";
      throw Error(
          fmt::format("the regular expression {:?} uses {} inside [...], which is not "
                      "supported",
                      pattern,
                      c == '&' ? "&&"
                      : posix  ? "[:...:]"
                               : "["));
    }
    if (c == '[') {
      ++depth;
      out += c;
      if (pattern.substr(i + 1, 1) == "^") out += pattern[++i];
      if (pattern.substr(i + 1, 1) == "]") out += "\\]", ++i;
      continue;
    }
    if (c == ']' && depth > 0) --depth;
    out += c;
  }
  return out;
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

struct Regex::Compiled {
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, pcre2_code_free};
  std::string pattern;
};

Regex::Regex(std::string_view pattern) : compiled_(std::make_unique<Compiled>()) {
  if (pattern.size() > kMaxPatternBytes) {
    throw Error(fmt::format("a regular expression of {} bytes; at most {} are supported",
                            pattern.size(),
                            kMaxPatternBytes));
  }
  compiled_->pattern = pattern;
  const std::string translated = to_pcre2(pattern);
  int code = 0;
  PCRE2_SIZE offset = 0;
  compiled_->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()),
                    translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                    &code,
                    &offset,
                    nullptr));
  if (!compiled_->code) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(code, message, sizeof message);
    throw Error(fmt::format("the regular expression {:?} cannot be used: {}",
                            pattern,
                            reinterpret_cast<const char*>(message)));
  }
  // Where there is no just-in-time compiler, matching works without, only slower.
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::for_each_match(
    std::string_view text,
    const std::function<void(std::size_t begin, std::size_t end)>& found) const {
  const pcre2_code* code = compiled_->code.get();
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  const std::unique_ptr<pcre2_jit_stack, decltype(&pcre2_jit_stack_free)> stack(
      pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr), pcre2_jit_stack_free);
  pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  pcre2_set_match_limit(context.get(), kMatchLimit);
  std::size_t at = 0;
  std::size_t last_end = std::string_view::npos;
  while (at <= text.size()) {
    const int count = pcre2_match(code,
                                  reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(),
                                  at,
                                  PCRE2_NO_UTF_CHECK,
                                  data.get(),
                                  context.get());
    if (count == PCRE2_ERROR_NOMATCH) return;
    if (count < 0) {
      throw Error(fmt::format("the regular expression {:?} needs too many steps on this text",
                              compiled_->pattern));
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data.get());
    const std::size_t begin = offsets[0];
    const std::size_t end = offsets[1];
    if (end > begin || begin != last_end) {
      found(begin, end);
      last_end = end;
    }
    at = end;
    if (end <= begin) {
      at += at < text.size() ? static_cast<std::size_t>(code_point_at(text, at).length) : 1;
    }
  }
}

}  // namespace reynard::tokenizer
