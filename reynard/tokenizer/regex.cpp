#include "reynard/tokenizer/regex.h"

#include "reynard/tensor/error.h"
#include "reynard/tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

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

std::string word_members() {
  return "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}" + added_members("L") + added_members("M") +
         added_members("Nd") +
         "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
}

// Word characters too where \w and \b stand outside [...]: ²³¹¼½¾.
constexpr const char* kLatin1Numbers = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

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
    case 'v':  // all vertical spaces here
      escape.members = "\\x{b}";
      break;
    case 'w':
    case 'W':
      escape.members = word_members();
      break;
    case 'x':
    case 'o':
      if (pattern.substr(2, 1) == "{") {
        escape.length = std::min(pattern.find('}'), pattern.size() - 1) + 1;
      }
      break;
    default:
      break;
  }
  return escape;
}

// {n}, {n,}, {,m} or {n,m}
struct Interval {
  std::string_view low, high;
  bool comma = false;
  std::size_t length = 0;  // in the pattern; 0: the brace stands for itself
};

Interval read_interval(std::string_view pattern) {  // pattern begins with {
  const auto digits_at = [&](std::size_t at) {
    const std::size_t end = std::min(pattern.find_first_not_of("0123456789", at), pattern.size());
    return pattern.substr(at, end - at);
  };
  Interval interval;
  interval.low = digits_at(1);
  std::size_t at = 1 + interval.low.size();
  interval.comma = pattern.substr(at, 1) == ",";
  if (interval.comma) {
    interval.high = digits_at(at + 1);
    at += 1 + interval.high.size();
  }
  const bool bounded = !interval.low.empty() || !interval.high.empty();
  if (bounded && pattern.substr(at, 1) == "}") interval.length = at + 1;
  return interval;
}

// Reads a pattern from left to right and writes what means the same to PCRE2.
class Translation {
 public:
  explicit Translation(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_set_) {
        set_member();
      } else if (c == '[') {
        set_begin();
      } else if (c == '(') {
        group_begin();
      } else if (c == '{') {
        interval();
      } else {
        if (c == ')' && caseless_.size() > 1) caseless_.pop_back();
        literal();
      }
    }
    return std::move(out_);
  }

 private:
  std::string_view rest() const { return pattern_.substr(at_); }
  void take(std::size_t length) {
    out_ += pattern_.substr(at_, length);
    at_ += length;
  }
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(
        fmt::format("the regular expression {:?} uses {}, which is not supported", pattern_, what));
  }

  void escape() {
    const Escape escape = read_escape(rest());
    const std::string_view text = rest().substr(0, escape.length);
    const char c = text.size() > 1 ? text[1] : '\0';
    if (caseless_.back()) check_caseless_escape(text);
    if (in_set_) {
      if (escape.members.empty() || (escape.negated && c != 'S')) return take(escape.length);
      out_ += escape.negated ? "\\S\\x{180e}" : escape.members;
    } else if (c == 'b' || c == 'B') {
      const std::string word = fmt::format("[{}{}]", word_members(), kLatin1Numbers);
      const bool ends = c == 'b';
      out_ += fmt::format(
          "(?:(?<={0})(?{1}{0})|(?<!{0})(?{2}{0}))", word, ends ? '!' : '=', ends ? '=' : '!');
    } else if (!escape.members.empty()) {
      out_ += fmt::format("[{}{}{}]",
                          escape.negated ? "^" : "",
                          escape.members,
                          c == 'w' || c == 'W' ? kLatin1Numbers : "");
    } else if (c == 'V' || c == 'Q' || c == 'E') {  // letters there, operators here
      refuse(text);
    } else {
      return take(escape.length);
    }
    at_ += escape.length;
  }

  void set_begin() {
    in_set_ = true;
    take(rest().substr(1, 1) == "^" ? 2 : 1);
    if (rest().substr(0, 1) == "]") out_ += "\\]", ++at_;
  }

  void set_member() {
    const char c = pattern_[at_];
    if (c == '[') refuse(rest().substr(0, 2) == "[:" ? "[:...:] inside [...]" : "[ inside [...]");
    if (rest().substr(0, 2) == "&&") refuse("&& inside [...]");
    if (c == ']') in_set_ = false;
    literal();
  }

  void literal() {
    if (caseless_.back()) check_caseless_literal();
    take(1);
  }

  // Of a group, or of options: (?im-x: ...) and (?im-x).
  void group_begin() {
    const std::string_view inside = rest().substr(std::min<std::size_t>(2, rest().size()));
    const std::size_t end =
        std::min(inside.find_first_not_of("-abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
                 inside.size());
    const bool group = inside.substr(end, 1) == ":";
    const bool has_options =
        rest().substr(0, 2) == "(?" && (group || (end > 0 && inside.substr(end, 1) == ")"));
    if (!has_options) {
      caseless_.push_back(caseless_.back());
      return take(1);
    }
    const std::string_view whole = rest().substr(0, 2 + end + 1);
    // There it holds for what follows up to the end of the group, with all its alternatives.
    if (!group && at_ > 0) refuse(fmt::format("{} behind the beginning", whole));
    bool caseless = caseless_.back();
    bool on = true;
    out_ += "(?";
    for (const char c : inside.substr(0, end)) {
      if (c == '-') on = false;
      if (c == 'i') caseless = on;
      if (c != '-' && c != 'i' && c != 'm' && c != 'x') refuse(whole);
      out_ += c == 'm' ? 's' : c;  // the dot matches line ends
    }
    out_ += whole.back();
    at_ += whole.size();
    if (group) {
      caseless_.push_back(caseless);
    } else {
      caseless_.back() = caseless;
    }
  }

  void interval() {
    const Interval interval = read_interval(rest());
    if (interval.length == 0) {
      out_ += "\\{";
      ++at_;
      return;
    }
    const std::string_view text = rest().substr(0, interval.length);
    const std::string_view behind = rest().substr(interval.length, 2);
    // It makes an interval optional there, and lazy here.
    if (!interval.comma && behind.starts_with('?')) refuse(fmt::format("{}?", text));
    at_ += interval.length;
    if (!behind.starts_with('+')) {
      out_ += fmt::format("{{{}{}{}}}",
                          interval.low.empty() ? "0" : interval.low,
                          interval.comma ? "," : "",
                          interval.high);
      return;
    }
    // Not possessive there but a repeated group: (?:X{1,m})+ is X+.
    const std::size_t again = behind.find_first_of("?+*{", 1) == 1 ? 1 : 0;
    if (interval.low != "1" || interval.high == "0" || again) {
      refuse(fmt::format("{}{}", text, behind.substr(0, 1 + again)));
    }
    out_ += '+';
    ++at_;
  }

  // Oniguruma's letters without regard to case are also those that fold to several: ss is ß.
  void check_caseless_literal() const {
    if (static_cast<unsigned char>(pattern_[at_]) >= 0x80) {
      const auto length = static_cast<std::size_t>(code_point_at(pattern_, at_).length);
      refuse(fmt::format("{} in (?i)", rest().substr(0, length)));
    }
    if (in_set_) return;
    for (const std::string_view pair : {"ff", "fi", "fl", "ss", "st"}) {
      const std::string_view here = rest().substr(0, 2);
      const bool same =
          std::equal(here.begin(), here.end(), pair.begin(), pair.end(), [](char a, char b) {
            return (a | 0x20) == b;
          });
      if (same) refuse(fmt::format("{} in (?i)", here));
    }
  }
  void check_caseless_escape(std::string_view text) const {
    const bool character = text.find_first_of("xuo") == 1;
    std::string_view name = text.find_first_of("pP") == 1 ? text.substr(2) : "";
    name.remove_prefix(std::min(name.find_first_not_of("{^"), name.size()));
    // Lu and Upper are of one case, L is not.
    const bool cased = name.size() > 2 && name.find_first_of("LUTlut") == 0;
    if (character || cased) refuse(fmt::format("{} in (?i)", text));
  }

  std::string_view pattern_;
  std::size_t at_ = 0;  // of the pattern
  std::string out_;
  bool in_set_ = false;                // [...]
  std::vector<bool> caseless_{false};  // of the pattern and the groups that are open
};

}  // namespace

std::string to_pcre2(std::string_view pattern) {
  return Translation(pattern).run();
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
